"""Every image against every other: how well embeddings tell a set of identities apart.

Each unordered pair of images is scored once by its cosine, which gives TAR at FAR with thresholds.
Rank-1 leaves one image out at a time and asks the search index for its nearest other image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.metrics import FAR_TARGETS, ScoreReport
from facetrain.evaluation.search import build_index

#: Pairs compared exhaustively; 4 bytes each, so 20,000 images take 0.8 GB.
MAX_PAIRS = 200_000_000

_ROWS_PER_BLOCK = 512


@dataclass(frozen=True, eq=False)
class IdentityResult:
    """Outcome of comparing every image with every other.

    Attributes:
        num_images: M.
        num_identities: distinct labels.
        rank1: share of probes whose nearest other image is of their identity.
        num_probes: images whose identity has another image.
        scores: cosines of all pairs, and the rates that follow from them.
        search: the engine that answered, and why it did.
    """

    num_images: int
    num_identities: int
    rank1: float
    num_probes: int
    scores: ScoreReport
    search: str

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {
            "num_images": self.num_images,
            "num_identities": self.num_identities,
            "rank1": self.rank1,
            "num_probes": self.num_probes,
            "search": self.search,
            **self.scores.to_dict(),
        }


def evaluate_identities(
    embeddings: np.ndarray,
    labels: np.ndarray,
    backend: str = "auto",
    far_targets: Sequence[float] = FAR_TARGETS,
) -> IdentityResult:
    """Compares all images with each other.

    Args:
        embeddings: [M, D], of any length but zero.
        labels: identity of each image, int [M].
        backend: search engine for rank-1, see `build_index`.
        far_targets: FARs to report TAR at.

    Raises:
        FacetrainError: unusable embeddings, no two images of one identity, a single identity, or
            more than MAX_PAIRS pairs.
    """
    unit = unit_embeddings(embeddings)
    labels = np.asarray(labels)
    if labels.shape != (len(unit),):
        raise FacetrainError(
            f"labels {list(labels.shape)}: expected one for {len(unit)} embeddings"
        )
    identities, sizes = np.unique(labels, return_counts=True)
    if len(identities) < 2 or sizes.max() < 2:
        raise FacetrainError(
            f"{len(labels)} images of {len(identities)} identities: at least two identities and "
            "one with two images are needed"
        )
    genuine, impostor = pair_scores(unit, labels)
    probes = np.flatnonzero(np.isin(labels, identities[sizes > 1]))
    index = build_index(unit, backend)
    _, nearest = index.search(unit[probes], 2)
    # An image need not be its own nearest: a copy of it may come first.
    others = np.where(nearest[:, 0] == probes, nearest[:, 1], nearest[:, 0])
    return IdentityResult(
        num_images=len(unit),
        num_identities=len(identities),
        rank1=float((labels[others] == labels[probes]).mean()),
        num_probes=len(probes),
        scores=ScoreReport.of(genuine, impostor, far_targets),
        search=index.describe(),
    )


def pair_scores(unit: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines float32 of all pairs of rows, each once: of equal labels, and of different ones.

    Raises:
        FacetrainError: more than MAX_PAIRS pairs.
    """
    num_rows = len(unit)
    num_pairs = num_rows * (num_rows - 1) // 2
    if num_pairs > MAX_PAIRS:
        raise FacetrainError(
            f"{num_rows} images make {num_pairs} pairs, more than {MAX_PAIRS}; "
            "evaluate fewer images"
        )
    sizes = np.unique(labels, return_counts=True)[1]
    num_genuine = int((sizes * (sizes - 1) // 2).sum())
    scores = {
        True: np.empty(num_genuine, dtype=np.float32),
        False: np.empty(num_pairs - num_genuine, dtype=np.float32),
    }
    filled = {True: 0, False: 0}
    for start in range(0, num_rows, _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        cosines = unit[block] @ unit[start:].T
        later = np.triu(np.ones(cosines.shape, dtype=bool), k=1)
        same = labels[block, None] == labels[None, start:]
        for kind, chosen in ((True, later & same), (False, later & ~same)):
            values = cosines[chosen]
            scores[kind][filled[kind] : filled[kind] + len(values)] = values
            filled[kind] += len(values)
    return scores[True], scores[False]
