"""The pairs an evaluation should show: impostors most alike, genuine pairs least alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ScoredPair(NamedTuple):
    """Two rows and their cosine."""

    score: float
    left: int
    right: int


class Extremes:
    """The pairs with the highest or lowest scores of any number that pass by.

    Args:
        num_kept: so many stay.
        highest: whether high or low scores are wanted.
    """

    def __init__(self, num_kept: int, *, highest: bool) -> None:
        self._num_kept = num_kept
        self._sign = 1.0 if highest else -1.0
        self._kept: list[tuple[float, int, int]] = []

    def bound(self) -> float:
        """A score at or inside this one changes nothing."""
        full = len(self._kept) == self._num_kept
        worst = self._kept[-1][0] if full and self._kept else -np.inf
        return self._sign * (np.inf if self._num_kept == 0 else worst)

    def add(self, scores: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """Looks at pairs: scores [P], rows [P] and [P]."""
        values = self._sign * np.asarray(scores, dtype=np.float64)
        chosen = np.flatnonzero(values > self._sign * self.bound())
        if len(chosen) > self._num_kept:
            chosen = chosen[np.argsort(-values[chosen], kind="stable")[: self._num_kept]]
        found = zip(values[chosen], left[chosen], right[chosen], strict=True)
        self._kept += [(float(value), int(a), int(b)) for value, a, b in found]
        # Sorted by score, then in the order of arrival.
        self._kept.sort(key=lambda kept: -kept[0])
        del self._kept[self._num_kept :]

    def pairs(self) -> list[ScoredPair]:
        """The pairs kept, the most extreme first."""
        return [ScoredPair(self._sign * value, left, right) for value, left, right in self._kept]


class WorstPairs(NamedTuple):
    """What went wrong most."""

    false_matches: list[ScoredPair]
    misses: list[ScoredPair]


def worst_pairs(
    scores: np.ndarray, left: np.ndarray, right: np.ndarray, is_same: np.ndarray, num: int = 12
) -> WorstPairs:
    """The `num` impostor pairs most alike and the `num` genuine pairs least alike."""
    found = []
    for kind, highest in ((~is_same, True), (is_same, False)):
        extremes = Extremes(num, highest=highest)
        extremes.add(scores[kind], left[kind], right[kind])
        found.append(extremes.pairs())
    return WorstPairs(*found)
