"""What an identity looks like: the direction of the mean of its unit embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings

_ROWS_PER_BLOCK = 2**15


@dataclass(frozen=True, eq=False)
class Centers:
    """One center per identity.

    Attributes:
        sums: float32 [C, D], the sum of the unit embeddings of each identity.
        counts: int64 [C], how many there are; 0 for a class id without images.
    """

    sums: np.ndarray
    counts: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """int64, the identities with a direction, ascending."""
        return np.flatnonzero((self.counts > 0) & self.sums.any(axis=1))

    def unit(self) -> np.ndarray:
        """float32 [len(present), D], of length 1."""
        return unit_embeddings(self.sums[self.present])


def unit_blocks(
    embeddings: np.ndarray, rows: np.ndarray | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """All embeddings, or those of `rows`, brought to length 1, block by block.

    Raises:
        FacetrainError: a row that is zero, NaN or infinite.
    """
    num_rows = len(embeddings) if rows is None else len(rows)
    for start in range(0, num_rows, _ROWS_PER_BLOCK):
        block = slice(start, min(start + _ROWS_PER_BLOCK, num_rows))
        yield block, unit_embeddings(embeddings[block if rows is None else rows[block]])


def identity_centers(
    embeddings: np.ndarray,
    labels: np.ndarray,
    num_identities: int,
    chosen: np.ndarray | None = None,
) -> Centers:
    """The centers of all identities.

    Args:
        embeddings: [N, D].
        labels: int [N], 0 .. num_identities - 1.
        num_identities: C.
        chosen: bool [N], the images that count; default: all.

    Raises:
        FacetrainError: unusable embeddings, or as many labels as there are no embeddings.
    """
    if embeddings.ndim != 2 or labels.shape != (len(embeddings),):
        raise FacetrainError(
            f"embeddings {list(embeddings.shape)} and labels {list(labels.shape)}: expected "
            "[images, size] and one label per image"
        )
    sums = np.zeros((num_identities, embeddings.shape[1]), np.float32)
    counts = np.zeros(num_identities, np.int64)
    for rows, unit in unit_blocks(embeddings):
        of_rows = labels[rows]
        if chosen is not None:
            unit, of_rows = unit[chosen[rows]], of_rows[chosen[rows]]
        if not len(of_rows):
            continue
        order = np.argsort(of_rows, kind="stable")
        identities, starts, sizes = np.unique(of_rows[order], return_index=True, return_counts=True)
        sums[identities] += np.add.reduceat(unit[order], starts, axis=0)
        counts[identities] += sizes
    return Centers(sums, counts)
