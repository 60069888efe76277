"""A small image folder and a source held in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest


def encode_png(image: np.ndarray) -> bytes:
    """RGB or grey pixels as a PNG, which keeps them exactly."""
    bgr = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", bgr)[1].tobytes()


class MemorySource:
    """A `FaceSource` over images held in memory, named image0, image1, ..."""

    def __init__(self, images: list[bytes], labels: list[int]) -> None:
        self.images = images
        self.labels = np.array(labels, dtype=np.int64)
        self.identities = tuple(f"person{label}" for label in range(max(labels) + 1))

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        return self.images[index]

    def describe(self, index: int) -> str:
        return f"image{index}"


@pytest.fixture
def make_source() -> Callable[..., MemorySource]:
    """Makes a source of `num_images` 16x16 images of flat colour, three to an identity."""

    def make(num_images: int, size: int = 16) -> MemorySource:
        pixels = [
            np.full((size, size, 3), (i, 2 * i, 255 - i), np.uint8) for i in range(num_images)
        ]
        return MemorySource([encode_png(p) for p in pixels], [i // 3 for i in range(num_images)])

    return make


@pytest.fixture
def encode() -> Callable[[np.ndarray], bytes]:
    return encode_png


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[[dict[str, list[str]]], Path]:
    """Writes {identity: [file name]} with small images and returns the root."""

    def write(layout: dict[str, list[str]]) -> Path:
        root = tmp_path / "faces"
        root.mkdir()
        for identity, names in layout.items():
            (root / identity).mkdir()
            for number, name in enumerate(names):
                pixels = np.full((16, 16, 3), 10 * number, np.uint8)
                (root / identity / name).write_bytes(encode_png(pixels))
        return root

    return write
