from __future__ import annotations

from pathlib import Path

import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import OperatingPoint
from facetrain.evaluation.thresholds import Thresholds
from facetrain.export import read_thresholds
from facetrain.model_files import save_model
from facetrain.preprocessing import Preprocessing
from facetrain_tools.cli import main

pytestmark = pytest.mark.slow  # seconds each, in torch's exporter


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    backbone = build_backbone("mobilefacenet_tiny", 16)
    save_model(tmp_path / "model.pt", "mobilefacenet_tiny", backbone, Preprocessing())
    return tmp_path / "model.pt"


def _thresholds(path: Path, preprocessing: str) -> Path:
    facts = {"preprocessing": preprocessing}
    Thresholds((OperatingPoint(1e-3, 9e-4, 0.9, 0.37),), 100, 5000, facts).save(path)
    return path


def test_says_what_was_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.onnx"
    thresholds = _thresholds(tmp_path / "thresholds.json", Preprocessing().describe())
    assert main(["export", str(model), str(out), "--thresholds", str(thresholds)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{out}  ")
    assert "embeddings of 16, any batch size" in said
    assert "fed with rgb, (x - 127.5) / 127.5, 112x112" in said
    assert "thresholds for FAR 1e-3, measured with " in said
    assert read_thresholds(out).cosine(1e-3) == 0.37
    bare = tmp_path / "bare.onnx"
    assert main(["export", str(model), str(bare)]) == 0
    with pytest.raises(FacetrainError, match="none in this model"):
        read_thresholds(bare)
    capsys.readouterr()
    assert main(["export", str(out), str(tmp_path / "again.onnx")]) == 2
    assert capsys.readouterr().err == f"error: {out}: is an ONNX model already\n"


def test_bad_input_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = _thresholds(tmp_path / "other.json", "bgr, (x - 0) / 1, 112x112")
    cases = {
        (str(model), "out.bin"): "out.bin: name a file that ends in .onnx",
        (str(tmp_path / "no.pt"), str(tmp_path / "a.onnx")): "no.pt",
        (str(model), str(tmp_path / "a.onnx"), "--thresholds", str(other)): "measured with",
    }
    for arguments, message in cases.items():
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "a.onnx").exists()
