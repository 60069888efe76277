"""Faces of a few made-up people, a model, and features of its own kind."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.model_files import save_model
from facetrain.preprocessing import Preprocessing
from facetrain.report import curves

BACKBONE = "mobilefacenet_tiny"
PEOPLE = ("Ann", "Bob", "Cyd", "Dan", "Eve")


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # results go to runs/ in the current folder


@pytest.fixture(autouse=True)
def _empty_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of the time of a small evaluation; ask for `real_plots` to have it."""
    if "real_plots" not in request.fixturenames:
        for name in ("roc", "det", "cmc", "dir"):
            monkeypatch.setattr(curves, f"{name}_curves", lambda *_: b"<svg></svg>")
        for name in ("score", "count"):
            monkeypatch.setattr(curves, f"{name}_histogram", lambda *_: b"<svg></svg>")


@pytest.fixture
def real_plots() -> None:
    """Asked for by a test whose pages have their plots."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(tmp_path / "model.pt", BACKBONE, build_backbone(BACKBONE, 16), Preprocessing())
    return tmp_path / "model.pt"


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Five people of four images each: a picture per person, with noise."""
    rng = np.random.default_rng(0)
    for name in PEOPLE:
        (tmp_path / "faces" / name).mkdir(parents=True)
        person = cv2.resize(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8), (112, 112))
        for number in range(1, 5):
            image = np.clip(person + rng.integers(0, 40, person.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "faces" / name / f"{name}_{number:04d}.jpg"), image)
    return tmp_path / "faces"


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """features.npz: 30 people of four images, 16 numbers each, with identities."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(30), 4)
    embeddings = rng.normal(size=(30, 16))[labels] + 0.7 * rng.normal(size=(120, 16))
    path = tmp_path / "features.npz"
    names = np.array([f"p{label}/{row}.jpg" for row, label in enumerate(labels)])
    np.savez(
        path,
        embeddings=embeddings.astype(np.float32),
        identities=np.array([f"p{label}" for label in labels]),
        names=names,
    )
    return path
