"""Exact engines: faiss's flat index, and the same in torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from facetrain.evaluation.search.base import SCORES_PER_BLOCK, SearchIndex
from facetrain.evaluation.search.faiss_library import gpu_resources, import_faiss

_GPU_MAX_CANDIDATES = 2048  # what faiss returns per query on a GPU


class FaissIndex(SearchIndex):
    """faiss IndexFlatIP, on the first GPU where faiss can use one.

    Raises:
        FacetrainError: faiss is absent, or both its CPU and its GPU distribution are installed.
    """

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        super().__init__(embeddings, reason)
        self._faiss: Any = import_faiss()
        self._index = self._faiss.IndexFlatIP(self.embeddings.shape[1])
        self._resources = gpu_resources(self._faiss)
        if self._resources is not None:
            self._index = self._faiss.index_cpu_to_gpu(self._resources, 0, self._index)
            self.max_candidates = _GPU_MAX_CANDIDATES
        self._index.add(self.embeddings)

    def _engine(self) -> str:
        device = "CPU" if self._resources is None else "GPU"
        return f"faiss {self._faiss.__version__} IndexFlatIP on {device}"

    def _propose(self, queries: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        return self._index.search(queries, num_candidates)


class TorchIndex(SearchIndex):
    """Matrix product and top-k in torch, on the first GPU where there is one."""

    def __init__(self, embeddings: np.ndarray, reason: str = "") -> None:
        super().__init__(embeddings, reason)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._entries = torch.from_numpy(self.embeddings).to(self._device)

    def _engine(self) -> str:
        return f"torch {torch.__version__} on {self._device.type}"

    def _propose(self, queries: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        with torch.inference_mode(), full_fp32():
            step = max(1, SCORES_PER_BLOCK // len(self._entries))
            for block in torch.from_numpy(queries).to(self._device).split(step):
                parts.append((block @ self._entries.T).topk(num_candidates, dim=1))
        scores, rows = (torch.cat(found).cpu().numpy() for found in zip(*parts, strict=True))
        return scores, rows


@contextmanager
def full_fp32() -> Iterator[None]:
    """fp32 products without the short formats (TF32, bf16) that a training run may allow."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
