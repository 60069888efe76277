"""A clean made-up set that tests plant their faults in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

SIZE = 64
NUM_PEOPLE = 60
IMAGES_EACH = 6


class People(NamedTuple):
    """Embeddings float32 [N, 64] of any length and labels int64 [N] of a clean set."""

    embeddings: np.ndarray
    labels: np.ndarray
    num_people: int

    def more(self, rng: np.random.Generator, person: int, num_images: int) -> np.ndarray:
        """Further images of a person."""
        mine = self.embeddings[self.labels == person]
        center = (mine / np.linalg.norm(mine, axis=1, keepdims=True)).mean(0)
        return scattered(rng, np.repeat(center[None], num_images, axis=0))


def scattered(rng: np.random.Generator, directions: np.ndarray) -> np.ndarray:
    noisy = directions + rng.normal(size=directions.shape) * 0.08
    return (noisy * rng.uniform(0.5, 20.0, (len(noisy), 1))).astype(np.float32)


@pytest.fixture
def people() -> People:
    """60 people of 6 images; strangers' cosines are 0 +- 1/8, an image's to its person 0.84."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(NUM_PEOPLE, SIZE))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    labels = np.repeat(np.arange(NUM_PEOPLE), IMAGES_EACH)
    shuffled = rng.permutation(labels)
    return People(scattered(rng, directions[shuffled]), shuffled, NUM_PEOPLE)
