"""Anything that turns faces into embeddings: a PyTorch backbone, an ONNX file, a baseline.

`embed_images` streams any number of images through an embedder; model_files.py reads and writes
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from facetrain.backbones import Backbone
from facetrain.errors import FacetrainError
from facetrain.prefetch import image_batches
from facetrain.preprocessing import Preprocessing

#: Metadata of an ONNX file that holds its `Preprocessing`, as JSON.
PREPROCESSING_KEY = "facetrain.preprocessing"
_ONNX_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
_MAX_FIXED_BATCH = 4096


class Embedder(Protocol):
    """Maps faces to embeddings; the evaluation knows no more of a model than this."""

    @property
    def embedding_size(self) -> int: ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    def describe(self) -> str:
        """One line for a report: what it is and where it runs."""
        ...

    def embed(self, images: Tensor) -> np.ndarray:
        """Embeddings float32 [B, D], not normalised, of uint8 RGB images [B, 3, H, W]."""
        ...


@dataclass(frozen=True)
class TorchEmbedder:
    """A backbone in evaluation mode; its training flags are as before after each call."""

    backbone: Backbone
    preprocessing: Preprocessing
    device: torch.device | str = "cpu"
    name: str = ""

    @property
    def embedding_size(self) -> int:
        return self.backbone.embedding_size

    def describe(self) -> str:
        return f"{self.name or type(self.backbone).__name__}, torch on {self.device}"

    def embed(self, images: Tensor) -> np.ndarray:
        with evaluation_mode(self.backbone), torch.inference_mode():
            inputs = self.preprocessing.normalise(images.to(self.device))
            return self.backbone(inputs).float().cpu().numpy()


class OnnxEmbedder:
    """An ONNX model with one image input [B, 3, H, W] and one embedding output [B, D].

    A model exported with a fixed batch size is fed batches of that size, the last one padded.

    Args:
        path: the file.
        preprocessing: what the model takes; None: what the file says (`facetrain.preprocessing` in
            its metadata, as `facetrain export` writes it), the default where it says nothing.
        device: "cpu", "cuda", or "auto": CUDA where onnxruntime can use it.
        color: channel order to feed it, whatever else it takes; None leaves that as it is.

    Attributes:
        metadata: what the file says of itself, by name.

    Raises:
        FacetrainError: onnxruntime absent, unreadable file, inputs or outputs of another kind, or
            CUDA asked for and not usable.
    """

    def __init__(
        self,
        path: Path,
        preprocessing: Preprocessing | None = None,
        device: str = "cpu",
        color: str | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise FacetrainError(
                f"model file {path}: reading ONNX needs onnxruntime; "
                "pip install onnxruntime (or facetrain[onnx])"
            ) from error
        if not path.is_file():
            raise FacetrainError(f"model file {path}: no such file; check the path")
        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        wanted = ["CPUExecutionProvider"] if device == "cpu" else list(_ONNX_PROVIDERS)
        available = onnxruntime.get_available_providers()
        providers = [provider for provider in wanted if provider in available]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        # onnxruntime raises a class of its own for each kind of damage; all derive from Exception.
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:160]
            raise FacetrainError(
                f"model file {path}: not a usable ONNX model ({reason})"
            ) from error
        # onnxruntime goes on without a provider that it cannot load.
        if device == "cuda" and self._session.get_providers()[0] != _ONNX_PROVIDERS[0]:
            raise FacetrainError(
                f"--device cuda: onnxruntime {onnxruntime.__version__} cannot use CUDA here for "
                f"{path}; install onnxruntime-gpu for this CUDA version, or use --device cpu"
            )
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.preprocessing = preprocessing or self._stored_preprocessing()
        if color is not None:
            self.preprocessing = replace(self.preprocessing, color=color)
        self._check_interface()
        # Shapes in the file may be symbolic, so one blank image says what comes out.
        size = self.preprocessing.image_size
        blank = self.embed(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        self.embedding_size = int(blank.shape[1])

    def _stored_preprocessing(self) -> Preprocessing:
        text = self.metadata.get(PREPROCESSING_KEY)
        if text is None:
            return Preprocessing()
        try:
            return Preprocessing.from_dict(json.loads(text))
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise FacetrainError(
                f"model file {self.path}: metadata {PREPROCESSING_KEY} is not usable ({error})"
            ) from error

    def _check_interface(self) -> None:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        size = self.preprocessing.image_size
        found = [f"{value.name} {value.type} {value.shape}" for value in (*inputs, *outputs)]
        shape = inputs[0].shape if len(inputs) == 1 else []
        fits = len(shape) == 4 and all(
            not isinstance(have, int) or have == want
            for have, want in zip(shape[1:], (3, size, size), strict=True)
        )
        if not fits or len(outputs) != 1 or inputs[0].type != "tensor(float)":
            raise FacetrainError(
                f"model file {self.path}: expected one float input [B, 3, {size}, {size}] and one "
                f"output, found {'; '.join(found)}; export it so"
            )
        self._input_name = inputs[0].name
        self._fixed_batch = shape[0] if isinstance(shape[0], int) else None
        if self._fixed_batch is not None and not 1 <= self._fixed_batch <= _MAX_FIXED_BATCH:
            raise FacetrainError(
                f"model file {self.path}: a batch of {self._fixed_batch} images; export it with a "
                "dynamic batch"
            )

    def describe(self) -> str:
        provider = self._session.get_providers()[0].removesuffix("ExecutionProvider")
        return f"{self.path.name}, onnxruntime on {provider}"

    def embed(self, images: Tensor) -> np.ndarray:
        inputs = self.preprocessing.normalise(images.cpu()).contiguous().numpy()
        step = self._fixed_batch or max(len(inputs), 1)
        parts = [self._run(inputs[start : start + step]) for start in range(0, len(inputs), step)]
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _run(self, inputs: np.ndarray) -> np.ndarray:
        num_rows = len(inputs)
        if self._fixed_batch and num_rows < self._fixed_batch:
            inputs = np.concatenate([inputs, np.repeat(inputs[-1:], self._fixed_batch, axis=0)])
            inputs = inputs[: self._fixed_batch]
        try:
            (output,) = self._session.run(None, {self._input_name: inputs})
        except Exception as error:  # as above, of a model that fails only when it runs
            reason = str(error).strip().splitlines()[0][:160]
            raise FacetrainError(
                f"model file {self.path}: does not run on {list(inputs.shape)} ({reason}); export "
                "it anew"
            ) from error
        if not isinstance(output, np.ndarray) or output.dtype.kind != "f":
            raise FacetrainError(
                f"model file {self.path}: its output is no array of floats; export it so"
            )
        if output.ndim != 2 or len(output) != len(inputs):
            raise FacetrainError(
                f"model file {self.path}: {len(inputs)} images gave an output "
                f"{list(output.shape)}, expected one embedding per image; export it with a "
                "dynamic batch"
            )
        return output[:num_rows]


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in evaluation mode inside, and in the mode it had before afterwards."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def embed_images(
    embedder: Embedder,
    images: Iterable[np.ndarray],
    *,
    batch_size: int = 128,
    flip: bool = False,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Embeddings float32 [N, D], not normalised, of uint8 RGB images [H, W, 3] in their order.

    Only some batches of images are in memory at a time, so `images` may decode as it goes; a
    sequence does so in threads, ahead of the model.

    Args:
        embedder: the model.
        images: all of one size, the embedder's.
        batch_size: images per call.
        flip: f(x) + f(mirrored x) in place of f(x).
        progress: called after each batch with the number of images done so far.

    Raises:
        FacetrainError: an image that is not uint8 [H, W, 3] of the embedder's size, naming its
            position, or a batch size below 1.
    """
    if batch_size < 1:
        raise FacetrainError(f"batch_size {batch_size}: must be at least 1")
    size = embedder.preprocessing.image_size
    parts = [np.empty((0, embedder.embedding_size), dtype=np.float32)]
    done = 0
    for batch in image_batches(images, batch_size):
        for row, image in enumerate(batch, done):
            if image.dtype != np.uint8 or image.shape != (size, size, 3):
                raise FacetrainError(
                    f"image {row}: {image.dtype} {list(image.shape)}, "
                    f"expected uint8 [{size}, {size}, 3]"
                )
        nchw = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
        embeddings = embedder.embed(nchw)
        if flip:
            embeddings = embeddings + embedder.embed(nchw.flip(3))
        parts.append(embeddings)
        done += len(batch)
        if progress is not None:
            progress(done)
    return np.concatenate(parts)
