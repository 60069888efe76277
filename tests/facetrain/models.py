"""Faces and a model for tests of embedders and model files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from facetrain.backbones import build_backbone
from facetrain.model_files import MODEL_FILE, save_model
from facetrain.preprocessing import Preprocessing

NAME = "mobilefacenet_tiny"
BGR = Preprocessing("bgr", 120.0, 60.0)


def write_model(folder: Path) -> Path:
    """A model file in a run's folder."""
    torch.manual_seed(0)
    path = folder / "run" / MODEL_FILE
    save_model(path, NAME, build_backbone(NAME, 16), BGR)
    return path


def faces(num: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (112, 112, 3), dtype=np.uint8) for _ in range(num)]


def as_batch(images: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
