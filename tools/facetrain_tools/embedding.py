"""Embeddings for a command: by a model, or read from a file of features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from facetrain.embedder import embed_images
from facetrain.errors import FacetrainError
from facetrain.model_files import load_embedder
from facetrain_tools.progress import progress


@dataclass(frozen=True)
class EmbeddingFlags:
    """Where embeddings come from: give --model, or --features."""

    model: Path | None = None
    """An .onnx file, the model.pt of a run, a run folder, or (with --backbone) a state dict."""
    features: Path | None = None
    """Precomputed embeddings in place of a model, one row per image in the images' order (.npy)."""
    flip: bool = False
    """Add the embedding of the mirrored face."""
    color: Literal["rgb", "bgr"] | None = None
    """Channel order the model is fed; default: what its file says, RGB where it says nothing."""
    backbone: str | None = None
    """Name of the backbone when --model is a state dict of arcface_torch."""
    batch_size: int = 64
    """Images per forward pass."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; auto is a GPU where there is one that can run it."""
    allow_grey: bool = False
    """Take grey images, their one channel repeated; otherwise they are refused."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [N, D], and what they were made with, for the report."""

    embeddings: np.ndarray
    facts: dict[str, str]


def embed(flags: EmbeddingFlags, images: Sequence[np.ndarray]) -> Embedded:
    """Embeddings of uint8 RGB images, decoded as they are asked for, with a progress bar.

    Raises:
        FacetrainError: neither or both of --model and --features, a model or file that cannot be
            read, or features of another number of images.
        DatasetError: an image that cannot be used.
    """
    if (flags.model is None) == (flags.features is None):
        raise FacetrainError("give either --model or --features")
    if flags.features is not None:
        return _read(flags.features, len(images))
    assert flags.model is not None
    embedder = load_embedder(
        flags.model, device=flags.device, color=flags.color, backbone=flags.backbone
    )
    started = time.perf_counter()
    with progress("embedding", len(images)) as done:
        embeddings = embed_images(
            embedder, images, batch_size=flags.batch_size, flip=flags.flip, progress=done
        )
    images_per_s = len(images) / (time.perf_counter() - started)
    return Embedded(
        embeddings,
        {
            "model": f"{flags.model} ({embedder.describe()})",
            "preprocessing": embedder.preprocessing.describe(),
            "flip": "f(x) + f(mirrored x)" if flags.flip else "no",
            "speed": f"{images_per_s:,.0f} img/s",
        },
    )


def _read(path: Path, num_images: int) -> Embedded:
    try:
        embeddings = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FacetrainError(f"features {path}: not a readable .npy file ({error})") from error
    if embeddings.ndim != 2 or len(embeddings) != num_images:
        raise FacetrainError(
            f"features {path}: {list(embeddings.shape)}, expected one row for each of the "
            f"{num_images} images, in their order"
        )
    return Embedded(embeddings.astype(np.float32, copy=False), {"features": str(path)})
