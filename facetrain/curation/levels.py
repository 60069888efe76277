"""How alike two people look to a model, measured on the set itself: where to draw lines.

Nearly all pairs of identities in a set are different people. So the cosines of random pairs of
centers say what strangers reach, and the cosine of each center to its nearest other one says what
the most alike of all people here reach, which grows with the set. Both are described by median and
MAD (the median distance to the median, times 1.4826: a standard deviation for a normal
distribution), which the few identities that are not different people do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from facetrain.curation.centers import Centers
from facetrain.errors import FacetrainError
from facetrain.evaluation.search import SearchIndex

MIN_IDENTITIES = 20

_NUM_PAIRS = 200_000
_MAX_PROBES = 100_000
_MAD_TO_STD = 1.4826


@dataclass(frozen=True)
class Spread:
    """Median and robust standard deviation of cosines."""

    median: float
    std: float

    def above(self, num_stds: float) -> float:
        """So many standard deviations above the median."""
        return self.median + num_stds * self.std

    def describe(self) -> str:
        return f"median {self.median:.3f}, standard deviation {self.std:.3f}"


@dataclass(frozen=True)
class Levels:
    """What different people reach, and the lines drawn from it.

    Attributes:
        random: cosines of random pairs of identities.
        nearest: cosine of an identity to the one nearest it.
    """

    random: Spread
    nearest: Spread

    @property
    def same_person(self) -> float:
        """Two identities at least this alike are taken for one person."""
        return self.nearest.above(5.0)

    @property
    def perhaps_same_person(self) -> float:
        """Two identities at least this alike are to be looked at where none may be missed."""
        return self.nearest.above(3.0)

    @property
    def alike(self) -> float:
        """An image at least this like the center of an identity may be of it."""
        return self.nearest.above(2.0)

    @property
    def strangers(self) -> float:
        """Two parts of an identity less alike than this are two people."""
        return self.random.above(3.0)

    @property
    def outlier(self) -> float:
        """An image less like its identity's other images than this does not belong."""
        return self.random.above(2.0)

    def describe(self) -> str:
        """One line for a report."""
        return (
            f"random identities: {self.random.describe()}; nearest identities: "
            f"{self.nearest.describe()}"
        )


def spread(values: np.ndarray) -> Spread:
    """Median and MAD of the values."""
    median = float(np.median(values))
    return Spread(median, _MAD_TO_STD * float(np.median(np.abs(values - median))))


def measure_levels(centers: Centers, index: SearchIndex, seed: int = 0) -> Levels:
    """The levels of a set, from at most 100,000 of its identities.

    Args:
        centers: of the set.
        index: over `centers.unit()`.
        seed: for the choice of pairs.

    Raises:
        FacetrainError: fewer than 20 identities.
    """
    unit = index.embeddings
    if len(unit) < MIN_IDENTITIES:
        raise FacetrainError(
            f"{len(unit)} identities are too few to see how alike strangers look (at least "
            f"{MIN_IDENTITIES}); give the thresholds yourself"
        )
    rng = np.random.default_rng(seed)
    left = rng.integers(0, len(unit), _NUM_PAIRS)
    right = (left + rng.integers(1, len(unit), _NUM_PAIRS)) % len(unit)
    cosines = np.concatenate(
        [
            np.einsum(
                "nd,nd->n", unit[left[start : start + 8192]], unit[right[start : start + 8192]]
            )
            for start in range(0, _NUM_PAIRS, 8192)
        ]
    )
    probes = np.arange(len(unit))
    if len(probes) > _MAX_PROBES:
        probes = np.sort(rng.choice(probes, _MAX_PROBES, replace=False))
    scores, rows = index.search(unit[probes], 2)
    nearest = np.where(rows[:, 0] == probes, scores[:, 1], scores[:, 0])
    return Levels(spread(cosines), spread(nearest))
