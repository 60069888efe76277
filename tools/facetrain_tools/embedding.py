"""Embeddings for a command: by a model, or read from a file of features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from facetrain.embedder import embed_images
from facetrain.errors import FacetrainError
from facetrain.model_files import load_embedder
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.protocols.feature_files import Features, read_features
from facetrain_tools.progress import progress


@dataclass(frozen=True)
class ModelFlags:
    """The model that embeds faces, and how."""

    model: Path | None = None
    """An .onnx file, the model.pt of a run, a run folder, or (with --backbone) a state dict."""
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


@dataclass(frozen=True)
class EmbeddingFlags(ModelFlags):
    """Where embeddings come from: give --model, or --features."""

    features: Path | None = None
    """Precomputed embeddings in place of a model: .npy or .npz, one row per image in the images'
    order or with their names, or a folder of MegaFace .bin files."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [N, D], and what they were made with, for the report."""

    embeddings: np.ndarray
    facts: dict[str, str]


def embed(
    flags: EmbeddingFlags, images: Sequence[np.ndarray], names: Sequence[str] | None = None
) -> Embedded:
    """Embeddings of uint8 RGB images, decoded as they are asked for, with a progress bar.

    Args:
        flags: where they come from.
        images: in order.
        names: of the images, in the same order; features that have names are picked by them.

    Raises:
        FacetrainError: neither or both of --model and --features, a model or file that cannot be
            read, or features of other images.
        DatasetError: an image that cannot be used, or a file of features that cannot be read.
    """
    if (flags.model is None) == (flags.features is None):
        raise FacetrainError("give either --model or --features")
    if flags.features is not None:
        return _picked(read_features(flags.features), len(images), names)
    return embed_with_model(flags, images)


def embed_with_model(flags: ModelFlags, images: Sequence[np.ndarray]) -> Embedded:
    """Embeddings by the model; see `embed`.

    Raises:
        FacetrainError: no --model, or one that cannot be read.
        DatasetError: an image that cannot be used.
    """
    if flags.model is None:
        raise FacetrainError("--model is needed to embed images")
    embedder = load_embedder(
        flags.model, device=flags.device, color=flags.color, backbone=flags.backbone
    )
    if isinstance(images, DecodedImages):
        size = embedder.preprocessing.image_size
        images = replace(images, image_size=size, allow_grey=flags.allow_grey)
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


def _picked(features: Features, num_images: int, names: Sequence[str] | None) -> Embedded:
    """The rows of the images: by name where both sides have names, else all in order."""
    embeddings = features.embeddings
    if features.names is None or names is None:
        if len(features) != num_images:
            raise FacetrainError(
                f"features {features.path}: {[len(features), features.size]}, expected one row for "
                f"each of the {num_images} images, in their order; or give them names (.npz)"
            )
        return Embedded(embeddings, {"features": f"{features.path}, in the images' order"})
    rows = {name: row for row, name in enumerate(features.names)}
    absent = [name for name in names if name not in rows]
    if absent:
        raise FacetrainError(
            f"features {features.path}: none for {len(absent)} of {num_images} images, the first "
            f"is {absent[0]}; embed them too"
        )
    return Embedded(
        embeddings[[rows[name] for name in names]], {"features": f"{features.path}, by name"}
    )
