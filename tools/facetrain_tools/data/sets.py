"""Sets of faces for the commands that look at them: opening, embedding, what a label holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats import open_faces
from facetrain_datasets.image_index import replaced_file
from facetrain_datasets.source import FaceSource
from facetrain_tools.embedding import Embedded, EmbeddingFlags, embed
from facetrain_tools.progress import progress


@dataclass(frozen=True, kw_only=True)
class SetFlags(EmbeddingFlags):
    """Embeddings of a set, and what is done with them."""

    save_features: Path | None = None
    """Keep the embeddings in this .npy file, for --features of later calls."""
    search: str = "auto"
    """Search engine: auto, faiss, torch (exact), ivf or hnsw (approximate, for millions)."""
    format: str = "auto"
    """Format of the data: folder, list, rec, tar or parquet; auto goes by its name."""
    out: Path | None = None
    """Folder for lists and report.html; default: a new one under runs/."""


def open_set(path: Path, format_name: str = "auto") -> FaceSource:
    """The faces at `path`, with a progress bar where an index must be built."""
    with progress("reading the index, %", 100) as show:
        return open_faces(
            path, format_name, progress=lambda done, total: show(100 * done // max(total, 1))
        )


def embed_set(flags: SetFlags, source: FaceSource) -> Embedded:
    """Embeddings of all images of a set in its order, saved if the flags say so.

    Raises:
        FacetrainError, DatasetError: see `embed`.
    """
    embedded = embed(flags, DecodedImages.of_source(source, allow_grey=flags.allow_grey))
    if flags.save_features is not None:
        with replaced_file(flags.save_features) as file:
            np.save(file, embedded.embeddings)
    return embedded


class Rows:
    """The images of each identity, found without looking through all labels again.

    Args:
        labels: int64 [N].
    """

    def __init__(self, labels: np.ndarray) -> None:
        self._order = np.argsort(labels, kind="stable")
        self._sorted = labels[self._order]

    def of(self, identity: int, limit: int, without: int = -1) -> list[int]:
        """The first `limit` images of an identity but `without`."""
        start, stop = np.searchsorted(self._sorted, [identity, identity + 1])
        rows = self._order[start : min(stop, start + limit + 1)]
        return [row for row in rows.tolist() if row != without][:limit]
