"""Nearest embeddings by inner product: faiss where it is installed, torch elsewhere.

index = build_index(unit)                     # exact; "ivf" and "hnsw" are not
scores, rows = index.search(queries, k=10)
"""

from facetrain.evaluation.search.approximate import HnswIndex, IvfIndex, recall
from facetrain.evaluation.search.backends import SEARCH_BACKENDS, build_index
from facetrain.evaluation.search.base import SearchIndex
from facetrain.evaluation.search.faiss_library import (
    FAISS_DISTRIBUTIONS,
    check_faiss,
    import_faiss,
    installed_faiss,
)
from facetrain.evaluation.search.flat import FaissIndex, TorchIndex
from facetrain.evaluation.search.sharded import search_blocks

__all__ = [
    "FAISS_DISTRIBUTIONS",
    "SEARCH_BACKENDS",
    "FaissIndex",
    "HnswIndex",
    "IvfIndex",
    "SearchIndex",
    "TorchIndex",
    "build_index",
    "check_faiss",
    "import_faiss",
    "installed_faiss",
    "recall",
    "search_blocks",
]
