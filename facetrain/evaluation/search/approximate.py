"""Engines that look at a part of the rows: an inverted file and a graph, both of faiss.

Candidates are scored and ordered as those of the exact engines are; a query for which an engine
finds too few is compared with all rows. `recall` says what share of the true neighbours is found.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from facetrain.evaluation.search.base import SearchIndex
from facetrain.evaluation.search.faiss_library import gpu_resources, import_faiss

_ROWS_PER_LIST = 39  # faiss asks for as many at least to find a list's center
_GPU_MAX_CANDIDATES = 2048
_GPU_MAX_LISTS = 2048  # that faiss visits for one query


class _ApproximateIndex(SearchIndex):
    exact = False

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        super().__init__(embeddings, reason)
        self._faiss: Any = import_faiss()
        self._index = self._build()
        self._index.add(self.embeddings)

    @abstractmethod
    def _build(self) -> Any:
        """The empty index."""

    def _propose(self, queries: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search(queries, num_candidates)


class IvfIndex(_ApproximateIndex):
    """faiss IndexIVFFlat: rows in 4 sqrt(M) lists, of which a query visits a sixteenth."""

    def _build(self) -> Any:
        num_rows, size = self.embeddings.shape
        lists = max(1, min(int(4 * num_rows**0.5), num_rows // _ROWS_PER_LIST))
        metric = self._faiss.METRIC_INNER_PRODUCT
        # Kept: the index refers to it without owning it.
        self._quantizer = self._faiss.IndexFlatIP(size)
        index = self._faiss.IndexIVFFlat(self._quantizer, size, lists, metric)
        index.cp.min_points_per_centroid = 1  # or faiss writes of small sets to stderr
        index.train(self.embeddings)
        index.nprobe = min(lists, max(8, lists // 16), _GPU_MAX_LISTS)
        self._lists, self._visited = lists, index.nprobe
        self._resources = gpu_resources(self._faiss)
        if self._resources is not None:
            self.max_candidates = _GPU_MAX_CANDIDATES
            index = self._faiss.index_cpu_to_gpu(self._resources, 0, index)
        return index

    def _engine(self) -> str:
        device = "CPU" if self._resources is None else "GPU"
        return (
            f"faiss {self._faiss.__version__} IndexIVFFlat on {device}, approximate: "
            f"{self._visited} of {self._lists} lists"
        )


class HnswIndex(_ApproximateIndex):
    """faiss IndexHNSWFlat: a graph of 32 neighbours a row, on the CPU. Malkov & Yashunin, 2018."""

    _NEIGHBOURS = 32
    _CONSTRUCTION = 100
    _SEARCH = 128

    def _build(self) -> Any:
        metric = self._faiss.METRIC_INNER_PRODUCT
        index = self._faiss.IndexHNSWFlat(self.embeddings.shape[1], self._NEIGHBOURS, metric)
        index.hnsw.efConstruction = self._CONSTRUCTION
        return index

    def _engine(self) -> str:
        return (
            f"faiss {self._faiss.__version__} IndexHNSWFlat on CPU, approximate: "
            f"{self._NEIGHBOURS} neighbours, {self._SEARCH} candidates"
        )

    def _propose(self, queries: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        self._index.hnsw.efSearch = max(self._SEARCH, num_candidates)
        return super()._propose(queries, num_candidates)


def recall(index: SearchIndex, exact: SearchIndex, queries: np.ndarray, k: int) -> float:
    """Share of the k nearest rows by `exact` that `index` finds too."""
    found, true = index.search(queries, k)[1], exact.search(queries, k)[1]
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, true, strict=True))
    return hits / true.size
