"""Nearest embeddings by inner product, exactly: faiss where it is installed, torch elsewhere.

Both engines give the same answers, ties included: they propose a few candidates more than asked
for, those are scored again in float64 and rounded to float32, and equal scores are ordered by row.
Where an engine's rounding could have hidden a better row, the query is compared with all rows.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from facetrain.errors import FacetrainError

#: Distributions that install a module named faiss; a second one overwrites the first.
FAISS_DISTRIBUTIONS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")

_EXTRA_CANDIDATES = 32
_GPU_MAX_CANDIDATES = 2048  # what faiss returns per query on a GPU
_SCORES_PER_BLOCK = 2**24


class SearchIndex(ABC):
    """Exact inner-product search in embeddings [M, D]; a subclass proposes candidates.

    Args:
        embeddings: float32 [M, D].
        reason: why this engine serves, for `describe`.
    """

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
    def _propose(self, queries: np.ndarray, num_candidates: int) -> np.ndarray:
        """Rows int64 [Q, num_candidates] with the highest scores, up to fp32 rounding."""

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
        step = max(1, _SCORES_PER_BLOCK // (max(num_candidates, k) * size))
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            scores[block], rows[block] = self._search_block(queries[block], k, num_candidates)
        return scores, rows

    def _search_block(
        self, queries: np.ndarray, k: int, num_candidates: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if num_candidates < k:
            return self._compare_with_all(queries, k)
        # In row order first, so that a stable sort by score leaves ties in row order.
        rows = np.sort(self._propose(queries, num_candidates), axis=1)
        exact = np.einsum("qd,qcd->qc", queries, self.embeddings[rows], dtype=np.float64)
        scores, rows = _best(exact.astype(np.float32), rows, num_candidates)
        if num_candidates < len(self.embeddings):
            # 4 eps sqrt(D) |q| |e| is far above the rounding seen in an fp32 product of D terms.
            rounding = 4.0 * np.finfo(np.float32).eps * queries.shape[1] ** 0.5
            rounding *= np.linalg.norm(queries, axis=1) * self._largest_norm
            doubtful = scores[:, k - 1] - scores[:, -1] <= 2.0 * rounding
            scores, rows = scores[:, :k], rows[:, :k]
            if doubtful.any():
                scores[doubtful], rows[doubtful] = self._compare_with_all(queries[doubtful], k)
        return scores[:, :k], rows[:, :k]

    def _compare_with_all(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        wide = queries.astype(np.float64)
        scores = np.empty((len(queries), 0), dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        step = max(1, _SCORES_PER_BLOCK // max(len(queries), queries.shape[1]))
        for start in range(0, len(self.embeddings), step):
            entries = self.embeddings[start : start + step].astype(np.float64)
            new_rows = np.broadcast_to(
                np.arange(start, start + len(entries)), (len(queries), len(entries))
            )
            scores, rows = _best(
                np.concatenate([scores, (wide @ entries.T).astype(np.float32)], axis=1),
                np.concatenate([rows, new_rows], axis=1),
                k,
            )
        return scores, rows


def _best(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best per line, descending; ties in the order in which they stand."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


class FaissIndex(SearchIndex):
    """faiss IndexFlatIP, on the first GPU where faiss can use one.

    Raises:
        FacetrainError: faiss is absent, or both its CPU and its GPU distribution are installed.
    """

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        super().__init__(embeddings, reason)
        self._faiss: Any = import_faiss()
        self._index = self._faiss.IndexFlatIP(self.embeddings.shape[1])
        self._on_gpu = hasattr(self._faiss, "StandardGpuResources") and (
            self._faiss.get_num_gpus() > 0
        )
        if self._on_gpu:
            self._resources = self._faiss.StandardGpuResources()
            self._index = self._faiss.index_cpu_to_gpu(self._resources, 0, self._index)
            self.max_candidates = _GPU_MAX_CANDIDATES
        self._index.add(self.embeddings)

    def _engine(self) -> str:
        device = "GPU" if self._on_gpu else "CPU"
        return f"faiss {self._faiss.__version__} IndexFlatIP on {device}"

    def _propose(self, queries: np.ndarray, num_candidates: int) -> np.ndarray:
        _, rows = self._index.search(queries, num_candidates)
        return rows


class TorchIndex(SearchIndex):
    """Matrix product and top-k in torch, on the first GPU where there is one."""

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        super().__init__(embeddings, reason)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._entries = torch.from_numpy(self.embeddings).to(self._device)

    def _engine(self) -> str:
        return f"torch {torch.__version__} on {self._device.type}"

    def _propose(self, queries: np.ndarray, num_candidates: int) -> np.ndarray:
        parts = []
        with torch.inference_mode(), _full_fp32():
            step = max(1, _SCORES_PER_BLOCK // len(self._entries))
            for block in torch.from_numpy(queries).to(self._device).split(step):
                parts.append((block @ self._entries.T).topk(num_candidates, dim=1).indices)
        return torch.cat(parts).cpu().numpy()


@contextmanager
def _full_fp32() -> Iterator[None]:
    """fp32 products without the short formats (TF32, bf16) that a training run may allow."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


SEARCH_BACKENDS: dict[str, type[SearchIndex]] = {"faiss": FaissIndex, "torch": TorchIndex}


def build_index(embeddings: np.ndarray, backend: str = "auto") -> SearchIndex:
    """An index over float32 embeddings [M, D].

    Args:
        embeddings: as they are to be compared; bring them to unit length for cosines.
        backend: "faiss", "torch", or "auto": faiss where it can be imported, torch elsewhere.

    Raises:
        FacetrainError: unknown backend, faiss asked for but absent, or two faiss installed.
    """
    if backend == "auto":
        check_faiss()
        try:
            importlib.import_module("faiss")
        except ImportError as error:
            reason = f"faiss cannot be imported: {error}; pip install 'facetrain[cpu]' for it"
            return TorchIndex(embeddings, reason)
        return FaissIndex(embeddings)
    if backend not in SEARCH_BACKENDS:
        known = ", ".join(("auto", *SEARCH_BACKENDS))
        raise FacetrainError(f"search backend {backend!r} is unknown; choose one of {known}")
    return SEARCH_BACKENDS[backend](embeddings)


def installed_faiss() -> tuple[str, ...]:
    """Names of the installed distributions that bring faiss; more than one is a broken install."""
    found = []
    for name in FAISS_DISTRIBUTIONS:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(name)
    return tuple(found)


def check_faiss() -> None:
    """Refuses an environment with two faiss distributions.

    Raises:
        FacetrainError: with the commands that mend it.
    """
    found = installed_faiss()
    if len(found) > 1:
        raise FacetrainError(
            f"{' and '.join(found)} are both installed: they share the module faiss, so one has "
            f"overwritten the other; pip uninstall -y {' '.join(found)}, then install one of them"
        )


def import_faiss() -> Any:
    """The faiss module.

    Raises:
        FacetrainError: absent or broken, or two distributions of it are installed.
    """
    check_faiss()
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise FacetrainError(
            f"search backend faiss: {error}; pip install 'facetrain[cpu]' or 'facetrain[gpu]', or "
            "choose torch"
        ) from error
