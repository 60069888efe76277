"""A model as an ONNX file that says how it is to be fed, and from which score on to accept.

    facetrain export runs/lfw lfw.onnx --thresholds thresholds.json

One float input `images` [B, 3, H, W], already normalised, any B; one output `embeddings` [B, D],
not of unit length. The file's metadata holds `facetrain.preprocessing` (JSON: color, mean, std,
image_size), `facetrain.model`, and `facetrain.thresholds` (JSON, as `facetrain eval calibrate`
writes it) where given.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from facetrain.embedder import PREPROCESSING_KEY, OnnxEmbedder, TorchEmbedder, evaluation_mode
from facetrain.errors import FacetrainError
from facetrain.evaluation.thresholds import Thresholds

THRESHOLDS_KEY = "facetrain.thresholds"

_CHECKED_BATCHES = (1, 2, 5)
#: Largest difference of an embedding's entries, over the largest entry, between torch and
#: onnxruntime: both sum in fp32, in different orders.
MAX_RELATIVE_DIFFERENCE = 1e-4


def export_onnx(embedder: TorchEmbedder, path: Path, thresholds: Thresholds | None = None) -> float:
    """Writes the file, and compares it with the model on several batch sizes before it is there.

    Returns:
        The largest relative difference seen.

    Raises:
        FacetrainError: a package is missing, or the written model gives other embeddings.
    """
    metadata = {
        "facetrain.model": embedder.describe(),
        PREPROCESSING_KEY: json.dumps(embedder.preprocessing.to_dict()),
    }
    if thresholds is not None:
        metadata[THRESHOLDS_KEY] = thresholds.to_json()
    if path.is_dir():
        raise FacetrainError(f"{path}: is a folder; name the file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial-{os.getpid()}.onnx")
    try:
        _write(embedder, partial, metadata)
        difference = _largest_difference(embedder, partial)
        if not difference <= MAX_RELATIVE_DIFFERENCE:  # NaN is no difference to accept either
            raise FacetrainError(
                f"{path}: the ONNX model differs from the torch one by {difference:.1e}, more than "
                f"{MAX_RELATIVE_DIFFERENCE:g}; nothing was written, please report this model"
            )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return difference


def read_thresholds(path: Path) -> Thresholds:
    """The thresholds in a file of `facetrain eval calibrate`, or in an exported .onnx file.

    Raises:
        FacetrainError: absent, not such a file, or an ONNX model without thresholds.
    """
    if path.suffix != ".onnx":
        return Thresholds.load(path)
    text = OnnxEmbedder(path).metadata.get(THRESHOLDS_KEY)
    if text is None:
        raise FacetrainError(
            f"thresholds {path}: none in this model; `facetrain export --thresholds` puts them in"
        )
    return Thresholds.from_json(text, path)


@contextmanager
def _without_log_of_exporter() -> Iterator[None]:
    """Without torch's word on each operator of packages that are not here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _write(embedder: TorchEmbedder, path: Path, metadata: dict[str, str]) -> None:
    size = embedder.preprocessing.image_size
    backbone = embedder.backbone
    example = torch.zeros(2, 3, size, size, device=embedder.device)
    try:
        with (
            evaluation_mode(backbone),
            torch.no_grad(),
            warnings.catch_warnings(),
            _without_log_of_exporter(),
        ):
            warnings.simplefilter("ignore")  # deprecations inside torch's exporter
            program = torch.onnx.export(
                backbone,
                (example,),
                dynamo=True,
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                verbose=False,
            )
    except ImportError as error:
        raise FacetrainError(
            f"writing ONNX needs {error.name or 'onnxscript'}; pip install 'facetrain[onnx]'"
        ) from error
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(str(path))


def _largest_difference(embedder: TorchEmbedder, path: Path) -> float:
    exported = OnnxEmbedder(path)
    size = embedder.preprocessing.image_size
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for num_rows in _CHECKED_BATCHES:
        shape = (num_rows, 3, size, size)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        expected = embedder.embed(images)
        if not np.isfinite(expected).all() or not expected.any():
            raise FacetrainError(
                f"model {embedder.describe()}: embeddings of random images are NaN, infinite or "
                "zero; it is broken, export another one"
            )
        difference = np.abs(exported.embed(images) - expected).max() / np.abs(expected).max()
        largest = max(largest, float(difference))
    return largest
