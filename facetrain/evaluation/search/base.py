"""What every search index does: score candidates again, order ties, answer for the engine's doubts.

An engine proposes a few candidates more than asked for; those are scored again in float64 and
rounded to float32, and equal scores are ordered by row. Where an exact engine's rounding could have
hidden a better row, the query is compared with all rows. So exact engines give the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from facetrain.errors import FacetrainError

_EXTRA_CANDIDATES = 16
SCORES_PER_BLOCK = 2**24


class SearchIndex(ABC):
    """Inner-product search in embeddings [M, D]; a subclass proposes candidates.

    Args:
        embeddings: float32 [M, D].
        reason: why this engine serves, for `describe`.
    """

    #: Whether the engine compares each query with all rows.
    exact: bool = True
    #: The most candidates the engine can propose per query.
    max_candidates: int | None = None

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        self.embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        if self.embeddings.ndim != 2 or len(self.embeddings) == 0:
            raise FacetrainError(f"embeddings {list(self.embeddings.shape)}: expected [rows, size]")
        self.reason = reason
        self._largest_norm = float(np.linalg.norm(self.embeddings, axis=1).max())

    @abstractmethod
    def _engine(self) -> str:
        """Name, version and device of the engine."""

    @abstractmethod
    def _propose(self, queries: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores in fp32, descending, and rows int64, both [Q, num_candidates], of the best rows.

        An engine that is not exact proposes what it finds, and row -1 where that is less.
        """

    def describe(self) -> str:
        """One line for a report: the engine, and why it serves."""
        return f"{self._engine()} ({self.reason})" if self.reason else self._engine()

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores float32 [Q, k], descending, and rows int64 [Q, k] of the k best rows per query.

        Raises:
            FacetrainError: k outside 1 .. M, queries of another size, or a query that is NaN or
                infinite.
        """
        num_rows, size = self.embeddings.shape
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != size:
            raise FacetrainError(f"queries {list(queries.shape)}: expected [queries, {size}]")
        if not np.isfinite(queries).all():
            raise FacetrainError("queries: some are NaN or infinite; check the model's embeddings")
        if not 1 <= k <= num_rows:
            raise FacetrainError(f"k {k}: must be 1 to {num_rows}, the rows there are")
        num_candidates = min(num_rows, k + _EXTRA_CANDIDATES)
        if self.max_candidates is not None:
            num_candidates = min(num_candidates, self.max_candidates)
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        step = max(1, SCORES_PER_BLOCK // max(num_candidates, k, size))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block], rows[block] = self._search_block(queries[block], k, num_candidates)
        return scores, rows

    def _search_block(
        self, queries: np.ndarray, k: int, num_candidates: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if num_candidates < k:
            return self._compare_with_all(queries, k)
        proposed, rows = self._propose(queries, num_candidates)
        # 4 eps sqrt(D) |q| |e| is far above the rounding seen in an fp32 product of D terms. A row
        # that is below the k-th by twice that cannot be among the k best.
        rounding = 4.0 * np.finfo(np.float32).eps * queries.shape[1] ** 0.5
        rounding *= np.linalg.norm(queries, axis=1) * self._largest_norm
        cut = proposed[:, k - 1] - 2.0 * rounding
        doubtful = rows[:, k - 1] < 0  # too few were found
        if self.exact and num_candidates < len(self.embeddings):
            doubtful = proposed[:, -1] >= cut  # others may have been passed over
        near = (proposed >= cut[:, None]).sum(axis=1)
        # In row order first, so that a stable sort by score leaves ties in row order.
        rows = np.sort(rows[:, : near[~doubtful].max(initial=k)], axis=1)
        scores, rows = best(self._exact_scores(queries, rows), rows, k)
        if doubtful.any():
            scores[doubtful], rows[doubtful] = self._compare_with_all(queries[doubtful], k)
        return scores, rows

    def _exact_scores(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Scores [Q, C] of some rows [Q, C] each, summed in float64; -inf for row -1."""
        scores = np.empty(rows.shape, dtype=np.float32)
        step = max(1, SCORES_PER_BLOCK // (rows.shape[1] * queries.shape[1]))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block] = np.einsum(
                "qd,qcd->qc", queries[block], self.embeddings[rows[block]], dtype=np.float64
            )
        scores[rows < 0] = -np.inf
        return scores

    def _compare_with_all(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        wide = queries.astype(np.float64)
        scores = np.empty((len(queries), 0), dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        step = max(1, SCORES_PER_BLOCK // max(len(queries), queries.shape[1]))
        for start in range(0, len(self.embeddings), step):
            entries = self.embeddings[start : start + step].astype(np.float64)
            new_rows = np.broadcast_to(
                np.arange(start, start + len(entries)), (len(queries), len(entries))
            )
            scores, rows = best(
                np.concatenate([scores, (wide @ entries.T).astype(np.float32)], axis=1),
                np.concatenate([rows, new_rows], axis=1),
                k,
            )
        return scores, rows


def best(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best per line, descending; ties in the order in which they stand."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
