"""In which order images come: an order maps a position of the endless stream to an image.

It is computed, not stored, and depends on nothing but the seed: any rank can ask for any position,
so resuming, on any number of ranks, is free.

    order = ORDERS["balanced"](labels, seed=0, images_per_identity=4)
    images = order.indices(np.arange(512))

Legend: K images per identity, I identities, n images of one identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.permutation import permute


class Order(Protocol):
    """An endless stream of images."""

    @property
    def num_samples(self) -> int:
        """Images there are to draw from; they are numbered from 0."""

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """The image, int64, at each of the stream's `positions`, int64 from 0."""


@dataclass(frozen=True)
class ShuffledOrder:
    """Every image once per epoch, in a new order each: position p is in epoch p // num_samples.

    Raises:
        DatasetError: no samples, or a negative seed.
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        require("num_samples", self.num_samples, self.num_samples >= 1, "1 or more")
        require("seed", self.seed, self.seed >= 0, "0 or more")

    def indices(self, positions: np.ndarray) -> np.ndarray:
        epochs, offsets = np.divmod(positions, self.num_samples)
        return permute(offsets, self.num_samples, seed=self.seed, stream=epochs)


class BalancedOrder:
    """K images of one identity after another ("P x K"): every identity comes equally often.

    A global batch of P * K images so holds P identities. Each identity comes once per round of I
    identities, in a new order each round; the images of one come in turn, each n of them once
    before any again, so an identity with fewer than K images repeats some.
    A. Hermans et al., "In Defense of the Triplet Loss", 2017, for the P x K batch.

    Args:
        labels: int64 [num_samples], the class id of each image.
        seed: non-negative.
        images_per_identity: K.

    Raises:
        DatasetError: no images, or a value out of its range.
    """

    def __init__(self, labels: np.ndarray, *, seed: int, images_per_identity: int = 4) -> None:
        require("num_samples", len(labels), len(labels) >= 1, "1 or more")
        require("seed", seed, seed >= 0, "0 or more")
        require("images_per_identity", images_per_identity, images_per_identity >= 1, "1 or more")
        self.num_samples = len(labels)
        self.seed = seed
        self.images_per_identity = images_per_identity
        # Most sets hold the images of an identity one after another: nothing is stored for them.
        in_order = bool((labels[1:] >= labels[:-1]).all())
        self._images = None if in_order else np.argsort(labels, kind="stable")
        counts = np.bincount(labels)
        with_images = np.flatnonzero(counts)
        self._counts = counts[with_images]
        self._starts = (np.cumsum(counts) - counts)[with_images]

    def indices(self, positions: np.ndarray) -> np.ndarray:
        groups, numbers = np.divmod(positions, self.images_per_identity)
        rounds, offsets = np.divmod(groups, len(self._counts))
        # Rounds and identities draw from streams of even and of odd number.
        chosen = permute(offsets, len(self._counts), seed=self.seed, stream=2 * rounds)
        sizes = self._counts[chosen]
        turns, draws = np.divmod(rounds * self.images_per_identity + numbers, sizes)
        streams = 2 * (turns * len(self._counts) + chosen) + 1
        rows = self._starts[chosen] + permute(draws, sizes, seed=self.seed, stream=streams)
        return rows if self._images is None else self._images[rows]


def _shuffled(labels: np.ndarray, *, seed: int) -> Order:
    return ShuffledOrder(len(labels), seed)


#: From (labels, seed=...) and the order's own options.
ORDERS: dict[str, Callable[..., Order]] = {"shuffle": _shuffled, "balanced": BalancedOrder}


def require(field: str, value: int, holds: bool, allowed: str) -> None:
    """Refuses a value that does not hold, naming what is allowed."""
    if not holds:
        raise DatasetError(f"{field} is {value}; allowed: {allowed}")
