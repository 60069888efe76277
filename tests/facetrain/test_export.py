from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.embedder import OnnxEmbedder, TorchEmbedder
from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import OperatingPoint
from facetrain.evaluation.thresholds import Thresholds
from facetrain.export import export_onnx
from facetrain.model_files import load_embedder
from facetrain.preprocessing import Preprocessing

pytestmark = pytest.mark.slow  # seconds each, in torch's exporter

_THRESHOLDS = Thresholds((OperatingPoint(1e-3, 9e-4, 0.9, 0.37),), 100, 5000, {"model": "m.pt"})
_PREPROCESSING = Preprocessing(color="bgr", mean=120.0, std=64.0)


def _embedder(name: str = "mobilefacenet_tiny") -> TorchEmbedder:
    torch.manual_seed(0)
    return TorchEmbedder(build_backbone(name, 16).eval(), _PREPROCESSING, name=name)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "deep" / "model.onnx"
    assert export_onnx(_embedder(), path, _THRESHOLDS) < 1e-5
    return path


def test_the_file_gives_the_same_embeddings_at_any_batch_size(exported: Path) -> None:
    embedder = load_embedder(exported)
    for num_rows in (1, 3, 8):
        images = torch.randint(0, 256, (num_rows, 3, 112, 112), dtype=torch.uint8)
        expected = _embedder().embed(images)
        np.testing.assert_allclose(
            embedder.embed(images), expected, atol=1e-5 * np.abs(expected).max()
        )


def test_the_file_says_how_it_is_fed_and_a_color_asked_for_wins(exported: Path) -> None:
    assert load_embedder(exported).preprocessing == _PREPROCESSING
    assert load_embedder(exported, color="rgb").preprocessing.color == "rgb"
    assert OnnxEmbedder(exported, Preprocessing()).preprocessing == Preprocessing()


def test_the_file_holds_the_thresholds(exported: Path, tmp_path: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    stored = session.get_modelmeta().custom_metadata_map["facetrain.thresholds"]
    (tmp_path / "thresholds.json").write_text(stored)
    assert Thresholds.load(tmp_path / "thresholds.json") == _THRESHOLDS
    assert json.loads(stored)["thresholds"][0]["squared_l2"] == pytest.approx(2 - 2 * 0.37)


def test_a_model_that_comes_out_different_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facetrain.export._write", lambda *_: None)
    monkeypatch.setattr("facetrain.export._largest_difference", lambda *_: 0.5)
    with pytest.raises(FacetrainError, match=r"differs from the torch one by 5\.0e-01"):
        export_onnx(_embedder(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_model_or_a_folder_is_refused(tmp_path: Path) -> None:
    embedder = _embedder()
    with torch.no_grad():
        for parameter in embedder.backbone.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(FacetrainError, match="NaN, infinite or zero"):
        export_onnx(embedder, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(FacetrainError, match=r"folder\.onnx: is a folder"):
        export_onnx(embedder, tmp_path / "folder.onnx")


@pytest.mark.parametrize("name", ["iresnet18", "mobilefacenet"])
def test_every_kind_of_backbone_can_be_exported(name: str, tmp_path: Path) -> None:
    assert export_onnx(_embedder(name), tmp_path / "model.onnx") < 1e-4
