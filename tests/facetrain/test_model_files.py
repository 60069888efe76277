"""Model files out and in, and every kind of file that must be refused."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.embedder import TorchEmbedder
from facetrain.errors import FacetrainError
from facetrain.model_files import (
    MODEL_FILE,
    load_embedder,
    load_initial_weights,
    load_model,
    save_model,
)
from facetrain.preprocessing import Preprocessing
from tests.facetrain.models import BGR, NAME, as_batch, faces, write_model


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_saved_model_gives_the_same_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(NAME, 16)
    save_model(tmp_path / MODEL_FILE, NAME, backbone, BGR)
    expected = TorchEmbedder(backbone, BGR).embed(as_batch(faces(3)))
    for path in (tmp_path, tmp_path / MODEL_FILE):
        loaded = load_embedder(path)
        assert loaded.preprocessing == BGR
        assert loaded.embedding_size == 16
        assert loaded.describe() == f"{NAME}, torch on cpu"
        np.testing.assert_array_equal(loaded.embed(as_batch(faces(3))), expected)
    assert [path.name for path in tmp_path.iterdir()] == [MODEL_FILE]


def test_color_can_be_overridden(model_file: Path) -> None:
    embedder = load_embedder(model_file, color="rgb")
    swapped = as_batch([image[:, :, ::-1].copy() for image in faces(2)])
    np.testing.assert_array_equal(
        embedder.embed(swapped), load_embedder(model_file).embed(as_batch(faces(2)))
    )


def test_arcface_state_dict_needs_its_backbone_named(tmp_path: Path) -> None:
    file = tmp_path / "backbone.pth"
    backbone = build_backbone(NAME, 24)
    torch.save(backbone.state_dict(), file)
    with pytest.raises(FacetrainError, match="not a facetrain model"):
        load_embedder(file)
    embedder = load_embedder(file, backbone=NAME)
    assert embedder.embedding_size == 24
    assert embedder.preprocessing == Preprocessing()


def test_model_cut_in_half_is_refused(model_file: Path) -> None:
    content = model_file.read_bytes()
    model_file.write_bytes(content[: len(content) // 2])
    with pytest.raises(FacetrainError, match=rf"{MODEL_FILE}: damaged, cut short") as caught:
        load_embedder(model_file)
    assert "\n" not in str(caught.value)


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this pickle ran",)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_pickle_that_would_run_code_is_refused(
    tmp_path: Path, writer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / MODEL_FILE
    if writer == "torch":
        torch.save({"format": "facetrain-model", "version": 1, "state_dict": Payload()}, file)
    else:
        file.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(FacetrainError, match="holds more than tensors") as caught:
        load_embedder(file)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a facetrain model"),
        ({"version": 2}, "format version 2"),
        ({"state_dict": None}, "no usable state_dict"),
        ({"state_dict": {"conv_sep.layers.0.weight": 3}}, "no usable state_dict"),
        ({"backbone": "resnet"}, "'resnet' is unknown"),
        ({"backbone": "mobilefacenet_small"}, "another shape"),
        ({"embedding_size": 17}, "another shape"),
        ({"embedding_size": 1 << 40}, "embedding_size 1099511627776: must be 1 to 65536"),
        ({"embedding_size": True}, "no usable embedding_size"),
        ({"preprocessing": {"color": "rgb"}}, "preprocessing has the fields"),
        ({"preprocessing": {"color": "rgb", 1: 2}}, "preprocessing has the fields"),
        ({"preprocessing": {**BGR.to_dict(), "image_size": float("inf")}}, "preprocessing {"),
        ({"preprocessing": {**BGR.to_dict(), "image_size": 10**9}}, "must be 1 to 4096"),
        ({"preprocessing": {**BGR.to_dict(), "image_size": 96}}, "images of 96 pixels"),
        ({"state_dict": {1: torch.zeros(1), "a": torch.zeros(1)}}, "no usable state_dict"),
    ],
)
def test_wrong_content_is_refused(
    model_file: Path, change: dict[str, object], message: str
) -> None:
    torch.save({**torch.load(model_file), **change}, model_file)
    with pytest.raises(FacetrainError, match=message) as caught:
        load_model(model_file)
    assert str(model_file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.to_sparse(),
        lambda tensor: tensor.to("meta"),
        lambda tensor: tensor.to(torch.complex64),
        lambda tensor: tensor.int(),
        lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
        lambda tensor: torch.zeros(1).expand(10**6, 10**6),
    ],
)
def test_tensors_of_another_kind_are_refused(
    model_file: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    content = torch.load(model_file)
    name, tensor = next(iter(content["state_dict"].items()))
    content["state_dict"][name] = change(tensor)
    torch.save(content, model_file)
    with pytest.raises(
        FacetrainError, match=f"1 of another shape or kind.*{name}|not a torch|holds"
    ):
        load_model(model_file)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FacetrainError, match="no such file"):
        load_embedder(tmp_path / "model.pt")
    with pytest.raises(FacetrainError, match="no such file"):
        load_embedder(tmp_path / "model.onnx")
    with pytest.raises(FacetrainError, match=r"holds no model\.pt"):
        load_embedder(tmp_path)


@pytest.mark.parametrize("content", [b"hello world\n", b"epoch 3", b'{"a": 1}', b"\xff\xd8\xff"])
def test_a_file_of_another_kind_is_called_so(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(FacetrainError) as raised:
        load_model(file)
    line = f"model file {file}: not a torch file; write or download it again"
    assert str(raised.value) == line
    file.write_bytes(b"")
    with pytest.raises(FacetrainError, match="is empty"):
        load_model(file)


@pytest.mark.parametrize("named", ["run", "file", "arcface_torch"])
def test_initial_weights_are_those_of_a_run_or_a_file(model_file: Path, named: str) -> None:
    path = model_file.parent if named == "run" else model_file
    trained = load_model(model_file).backbone
    if named == "arcface_torch":
        state = {f"module.{key}": value for key, value in trained.state_dict().items()}
        torch.save(state, model_file)
    backbone = build_backbone(NAME, trained.embedding_size)
    load_initial_weights(backbone, path)
    for key, value in trained.state_dict().items():
        assert torch.equal(backbone.state_dict()[key], value)


def test_initial_weights_that_cannot_be_used_are_named_by_flag(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    torch.save({"format": "facetrain-model", "state_dict": None}, tmp_path / "none.pt")
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pt")
    expected = {
        "absent": "no such file; check the path",
        "empty": "holds no model.pt; name a run",
        "text": "not a torch file",
        "none.pt": "not a state dict",
        "other.pt": "its tensors are not those of",
    }
    for name, reason in expected.items():
        with pytest.raises(FacetrainError) as raised:
            load_initial_weights(build_backbone(NAME, 16), tmp_path / name)
        assert str(raised.value).startswith(f"--initial-weights {tmp_path / name}: {reason}")


def test_a_save_to_a_full_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda _, mode: opened(Path("/dev/full"), mode))
    with pytest.raises(OSError, match="No space left") as raised:
        save_model(tmp_path / MODEL_FILE, NAME, build_backbone(NAME, 16), BGR)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename.startswith(str(tmp_path / MODEL_FILE))
    assert list(tmp_path.iterdir()) == []


def test_failed_save_leaves_the_old_file(model_file: Path) -> None:
    before = model_file.read_bytes()
    backbone = build_backbone(NAME, 16)
    backbone.register_buffer("unpicklable", torch.zeros(1))
    backbone.embedding_size = lambda: 0  # type: ignore[assignment]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save_model(model_file, NAME, backbone, BGR)
    assert model_file.read_bytes() == before
    assert [path.name for path in model_file.parent.iterdir()] == [MODEL_FILE]


def test_torch_model_without_a_gpu(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_embedder(model_file, device="auto").describe().endswith("torch on cpu")
    with pytest.raises(FacetrainError, match="--device cuda"):
        load_embedder(model_file, device="cuda")
