"""A small set of faces with features that say who is who, and faults planted in both."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

SIZE = 64


class FaceSet(NamedTuple):
    """An image folder and its features, in the order of the sorted file names."""

    root: Path
    features: Path


@pytest.fixture
def write_set(tmp_path: Path) -> Callable[..., FaceSet]:
    """Writes {identity: numbers of the people on its images}; one number is one direction."""

    def write(name: str, layout: dict[str, Sequence[int]], seed: int = 0) -> FaceSet:
        rng = np.random.default_rng(seed)
        root = tmp_path / name
        rows = []
        for identity in sorted(layout):
            (root / identity).mkdir(parents=True)
            for number, person in enumerate(layout[identity]):
                picture = cv2.resize(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8), (112, 112))
                file = root / identity / f"{number:02d}.png"
                cv2.imwrite(str(file), picture, [cv2.IMWRITE_PNG_COMPRESSION, 0])
                direction = np.random.default_rng(person).normal(size=SIZE)
                direction /= np.linalg.norm(direction)
                rows.append(direction + 0.06 * rng.normal(size=SIZE))
        np.save(tmp_path / f"{name}.npy", np.array(rows, np.float32))
        return FaceSet(root, tmp_path / f"{name}.npy")

    return write


@pytest.fixture
def read_list() -> Callable[[Path], list[dict[str, str]]]:
    """The rows of a CSV file."""

    def read(path: Path) -> list[dict[str, str]]:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    return read


def people(count: int, images: int = 4) -> dict[str, list[int]]:
    """`count` identities of one person each."""
    return {f"p{number:02d}": [number] * images for number in range(count)}
