"""Embedders: batches, evaluation mode, and ONNX files of every kind."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.embedder import OnnxEmbedder, TorchEmbedder, embed_images
from facetrain.errors import FacetrainError
from facetrain.model_files import (
    load_embedder,
)
from facetrain.preprocessing import Preprocessing
from tests.facetrain.models import NAME, as_batch, faces, write_model


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_embed_leaves_training_flags_and_statistics_as_they_were() -> None:
    backbone = build_backbone(NAME, 16)
    backbone.features.eval()
    flags = [module.training for module in backbone.modules()]
    state = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    TorchEmbedder(backbone, Preprocessing()).embed(as_batch(faces(2)))
    assert [module.training for module in backbone.modules()] == flags
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_embed_images_equals_one_image_at_a_time(model_file: Path) -> None:
    embedder = load_embedder(model_file)
    images = faces(5)
    done: list[int] = []
    result = embed_images(embedder, iter(images), batch_size=2, flip=True, progress=done.append)
    expected = np.concatenate(
        [
            embedder.embed(as_batch([image])) + embedder.embed(as_batch([image[:, ::-1].copy()]))
            for image in images
        ]
    )
    # Another batch size may take another convolution kernel: fp32 rounding only.
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert done == [2, 4, 5]
    assert result.dtype == np.float32


def test_embed_images_without_images_is_empty(model_file: Path) -> None:
    assert embed_images(load_embedder(model_file), []).shape == (0, 16)


def test_embed_images_names_the_image_of_another_size(model_file: Path) -> None:
    images = [*faces(3), np.zeros((96, 112, 3), np.uint8)]
    with pytest.raises(FacetrainError, match=r"image 3: uint8 \[96, 112, 3\], expected"):
        embed_images(load_embedder(model_file), images, batch_size=2)
    with pytest.raises(FacetrainError, match="batch_size 0"):
        embed_images(load_embedder(model_file), images, batch_size=0)


def write_onnx(path: Path, batch: int | str, size: int = 112) -> None:
    """A linear embedding as ONNX: the means of the image's channels, times a 3x4 matrix."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["embedding"]),
        ],
        "embedder",
        [helper.make_tensor_value_info("images", kind, [batch, 3, size, size])],
        [helper.make_tensor_value_info("embedding", kind, [batch, 4])],
        [onnx.numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_onnx_embeds_batches_of_any_size(tmp_path: Path, batch: int | str) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "linear.onnx"
    write_onnx(path, batch)
    embedder = load_embedder(path)
    images = as_batch(faces(3))
    means = ((images.double() - 127.5) / 127.5).mean((2, 3)).numpy()
    expected = means @ np.arange(12).reshape(3, 4)
    assert embedder.embedding_size == 4
    np.testing.assert_allclose(embedder.embed(images), expected, atol=1e-5)
    swapped = load_embedder(path, color="bgr").embed(images)
    np.testing.assert_allclose(swapped, means[:, ::-1] @ np.arange(12).reshape(3, 4), atol=1e-5)


def test_onnx_runs_where_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "linear.onnx"
    write_onnx(path, "n")
    real, asked = onnxruntime.InferenceSession, []

    def session(path: str, options: object, providers: list[str]) -> object:
        asked.append(providers)
        return real(path, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    for device in ("auto", "cpu"):
        assert load_embedder(path, device=device).describe().endswith("onnxruntime on CPU")
    with pytest.raises(FacetrainError, match=r"--device cuda: onnxruntime .* cannot use CUDA here"):
        load_embedder(path, device="cuda")
    assert asked == [both, ["CPUExecutionProvider"], both]


def test_onnx_of_another_kind_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "small.onnx"
    write_onnx(path, "n", size=96)
    with pytest.raises(FacetrainError, match=r"expected one float input \[B, 3, 112, 112\]"):
        load_embedder(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FacetrainError, match="not a usable ONNX model"):
        load_embedder(path)
    with pytest.raises(FacetrainError, match="leave it out"):
        load_embedder(path, backbone="iresnet18")


def test_onnx_that_does_not_run_as_it_says_is_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "odd.onnx"
    for batch in (0, 10**9):
        write_onnx(path, batch)
        with pytest.raises(FacetrainError, match=rf"odd\.onnx: a batch of {batch} images"):
            load_embedder(path)
    write_onnx(path, "n")
    good = path.read_bytes()
    for metadata in ("[" * 100_000, '{"color": "rgb", "mean": 1, "std": 1, "image_size": 1e999}'):
        model = onnx.load_from_string(good)
        model.metadata_props.add(key="facetrain.preprocessing", value=metadata)
        onnx.save(model, str(path))
        with pytest.raises(FacetrainError, match=r"metadata .* is not usable"):
            load_embedder(path)
    for operator, message in (("Cast", "no array of floats"), ("Reshape", "does not run on")):
        model = onnx.load_from_string(good)
        model.graph.node[-1].output[0] = "product"
        if operator == "Cast":
            model.graph.node.append(
                onnx.helper.make_node("Cast", ["product"], ["embedding"], to=onnx.TensorProto.INT64)
            )
            model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
        else:
            shape = onnx.numpy_helper.from_array(np.array([7, -1]), "shape")
            model.graph.initializer.append(shape)
            model.graph.node.append(
                onnx.helper.make_node("Reshape", ["product", "shape"], ["embedding"])
            )
        onnx.save(model, str(path))
        with pytest.raises(FacetrainError, match=message) as caught:
            load_embedder(path)
        assert "\n" not in str(caught.value)


def test_onnx_without_onnxruntime_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FacetrainError, match="pip install onnxruntime"):
        OnnxEmbedder(tmp_path / "model.onnx")
