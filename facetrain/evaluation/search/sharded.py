"""Exact search in more embeddings than fit into memory: block by block, the best kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.search.backends import build_index
from facetrain.evaluation.search.base import best


def search_blocks(
    blocks: Iterable[np.ndarray], queries: np.ndarray, k: int, backend: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """The answers of one index over all rows, with one block of them in memory at a time.

    Args:
        blocks: embeddings float32 [rows, D], one after another; numbered from 0 throughout.
        queries: float32 [Q, D].
        k: neighbours per query.
        backend: as for `build_index`.

    Returns:
        Scores float32 [Q, k], descending, and rows int64 [Q, k]; ties by row.

    Raises:
        FacetrainError: fewer than k rows in all, or see `SearchIndex.search`.
    """
    scores = np.empty((len(queries), 0), dtype=np.float32)
    rows = np.empty((len(queries), 0), dtype=np.int64)
    num_rows = 0
    for block in blocks:
        new_scores, new_rows = build_index(block, backend).search(queries, min(k, len(block)))
        # Earlier rows first: a stable sort then orders ties by row.
        scores, rows = best(
            np.concatenate([scores, new_scores], axis=1),
            np.concatenate([rows, new_rows + num_rows], axis=1),
            k,
        )
        num_rows += len(block)
    if not 1 <= k <= num_rows:
        raise FacetrainError(f"k {k}: must be 1 to {num_rows}, the rows there are")
    return scores, rows
