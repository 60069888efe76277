"""The engines by name."""

from __future__ import annotations

import importlib

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.search.approximate import HnswIndex, IvfIndex
from facetrain.evaluation.search.base import SearchIndex
from facetrain.evaluation.search.faiss_library import check_faiss
from facetrain.evaluation.search.flat import FaissIndex, TorchIndex

SEARCH_BACKENDS: dict[str, type[SearchIndex]] = {
    "faiss": FaissIndex,
    "torch": TorchIndex,
    "ivf": IvfIndex,
    "hnsw": HnswIndex,
}


def build_index(embeddings: np.ndarray, backend: str = "auto") -> SearchIndex:
    """An index over float32 embeddings [M, D].

    Args:
        embeddings: as they are to be compared; bring them to unit length for cosines.
        backend: one of `SEARCH_BACKENDS`, or "auto": faiss where it can be imported, else torch.

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
