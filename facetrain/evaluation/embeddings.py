"""What every evaluation does first: check embeddings and bring them to unit length."""

from __future__ import annotations

import numpy as np

from facetrain.errors import FacetrainError


def unit_embeddings(embeddings: np.ndarray) -> np.ndarray:
    """Embeddings float32 [M, D] of length 1; lengths are summed in float64.

    Raises:
        FacetrainError: not a matrix with rows, or a row that is zero, NaN or infinite.
    """
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or embeddings.size == 0:
        raise FacetrainError(f"embeddings {list(embeddings.shape)}: expected [images, size]")
    norms = np.sqrt(np.einsum("md,md->m", embeddings, embeddings, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0.0)))
    if len(bad):
        raise FacetrainError(
            f"embeddings: {len(bad)} of {len(embeddings)} have no direction (zero, NaN or "
            f"infinite), the first is row {bad[0]}; the model is broken or still untrained"
        )
    return (embeddings / norms[:, None]).astype(np.float32)
