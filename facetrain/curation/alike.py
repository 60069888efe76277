"""Identities that are one person: split over two labels of a set, or shared by two sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from facetrain.curation.centers import Centers
from facetrain.evaluation.search import SearchIndex

_NEIGHBOURS = 8


@dataclass(frozen=True, eq=False)
class AlikePairs:
    """Pairs of identities, the most alike first.

    Attributes:
        left: int64 [P], identity of the first set.
        right: int64 [P], identity of the second set (or of the same one).
        cosines: float32 [P], of their centers, descending.
    """

    left: np.ndarray
    right: np.ndarray
    cosines: np.ndarray

    def __len__(self) -> int:
        return len(self.left)


def split_identities(centers: Centers, index: SearchIndex, threshold: float) -> AlikePairs:
    """Pairs of identities of one set whose centers' cosine is at least `threshold`, each once.

    Args:
        centers: of the set.
        index: over `centers.unit()`.
        threshold: such as `Levels.same_person`; each identity is paired with its 7 nearest at most.
    """
    left, right, cosines = _pairs(index.embeddings, index, threshold)
    once = left < right
    # The rounding of a cosine may differ between a -> b and b -> a: keep what either gives.
    swapped = left > right
    keys = np.concatenate(
        [
            left[once] * len(index.embeddings) + right[once],
            right[swapped] * len(index.embeddings) + left[swapped],
        ]
    )
    values = np.concatenate([cosines[once], cosines[swapped]])
    keys, first = np.unique(keys, return_index=True)
    low, high = np.divmod(keys, len(index.embeddings))
    return _sorted(centers.present[low], centers.present[high], values[first])


def shared_identities(
    left: Centers, right: Centers, right_index: SearchIndex, threshold: float
) -> AlikePairs:
    """Pairs of an identity of one set and one of another whose cosine is at least `threshold`.

    Args:
        left: of the first set.
        right: of the second set.
        right_index: over `right.unit()`.
        threshold: such as `Levels.perhaps_same_person`; each identity is paired with its 8
            nearest at most.
    """
    rows, found, cosines = _pairs(left.unit(), right_index, threshold)
    return _sorted(left.present[rows], right.present[found], cosines)


def _pairs(
    queries: np.ndarray, index: SearchIndex, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores, found = index.search(queries, min(_NEIGHBOURS, len(index.embeddings)))
    rows, columns = np.nonzero(scores >= threshold)
    return rows, found[rows, columns], scores[rows, columns]


def _sorted(left: np.ndarray, right: np.ndarray, cosines: np.ndarray) -> AlikePairs:
    order = np.lexsort((right, left, -cosines))
    return AlikePairs(left[order], right[order], cosines[order])
