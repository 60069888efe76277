"""Images that do not look like their identity: outliers, and those that look like another one.

For each image: `own`, its cosine to the center of the other images of its identity, and `other`,
its cosine to the nearest center of another identity. Looked at twice: what the first look suspects
takes no part in the centers of the second, so that a wrong image does not speak for its identity.

Cost: one search among the C centers per image, and another for those that the first look touched;
memory for the centers, their index and a block of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from facetrain.curation.centers import Centers, identity_centers, unit_blocks
from facetrain.evaluation.search import SearchIndex, build_index


@dataclass(frozen=True)
class SuspectThresholds:
    """Where an image becomes suspect.

    Attributes:
        outlier: an image whose `own` is below does not look like its identity.
        alike: an image whose `other` is at least this, and
        gap: exceeds `own` by this, looks like the other identity.
    """

    outlier: float
    alike: float
    gap: float = 0.1


class Evidence(NamedTuple):
    """What speaks for and against each image's label, [N] each.

    Attributes:
        own: float32, cosine to the center of its identity's other images; NaN where it has none.
        other: float32, cosine to the nearest center of another identity.
        nearest: int64, that identity.
    """

    own: np.ndarray
    other: np.ndarray
    nearest: np.ndarray

    def is_outlier(self, thresholds: SuspectThresholds) -> np.ndarray:
        """bool [N]."""
        return self.own < thresholds.outlier

    def is_mislabelled(self, thresholds: SuspectThresholds) -> np.ndarray:
        """bool [N]; an image alone in its identity is not: a split identity says it better."""
        is_nearer = self.other - self.own >= thresholds.gap
        return is_nearer & (self.other >= thresholds.alike)


@dataclass(frozen=True, eq=False)
class Suspects:
    """Images to look at, the most suspect first.

    Attributes:
        rows: int64 [S].
        is_mislabelled: bool [S]; the others are outliers.
        own, other, nearest: [S] each, see `Evidence`.
    """

    rows: np.ndarray
    is_mislabelled: np.ndarray
    own: np.ndarray
    other: np.ndarray
    nearest: np.ndarray


def find_suspects(
    embeddings: np.ndarray,
    labels: np.ndarray,
    num_identities: int,
    thresholds: SuspectThresholds,
    same_pairs: np.ndarray | None = None,
    backend: str = "auto",
) -> Suspects:
    """Images that do not look like their identity, by how much another one or none suits better.

    Args:
        embeddings: [N, D].
        labels: int [N].
        num_identities: C.
        thresholds: see `SuspectThresholds`.
        same_pairs: int [P, 2], pairs of identities that are one person under two labels: an image
            of one is not suspect for looking like the other.
        backend: search engine, see `build_index`.

    Raises:
        FacetrainError: unusable embeddings or labels.
    """
    pairs = np.empty((0, 2), np.int64) if same_pairs is None else np.sort(same_pairs, axis=1)
    same = np.unique(pairs[:, 0] * num_identities + pairs[:, 1])

    def suspects(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.minimum(labels, evidence.nearest), np.maximum(labels, evidence.nearest)
        is_mislabelled = evidence.is_mislabelled(thresholds)
        is_mislabelled &= ~np.isin(low * num_identities + high, same)
        return evidence.is_outlier(thresholds) | is_mislabelled, is_mislabelled

    everyone = np.ones(len(labels), dtype=bool)
    evidence = image_evidence(embeddings, labels, num_identities, everyone, backend=backend)
    first, wrong = suspects(evidence)
    trusted = ~first
    # Where all of an identity are suspect, those that look like nobody else speak for it, or all.
    for candidates in (~wrong, everyone):
        is_mute = np.bincount(labels[trusted], minlength=num_identities) == 0
        trusted |= is_mute[labels] & candidates
    # Only what was compared with a center that is another one now needs the second look.
    changed = np.zeros(num_identities, dtype=bool)
    changed[labels[~trusted]] = True
    again = np.flatnonzero(changed[labels] | changed[evidence.nearest])
    second = image_evidence(embeddings, labels, num_identities, trusted, again, backend=backend)
    for old, new in zip(evidence, second, strict=True):
        old[again] = new
    found, is_mislabelled = suspects(evidence)
    rows = np.flatnonzero(found)
    rows = rows[np.argsort((evidence.own - evidence.other)[rows], kind="stable")]
    return Suspects(
        rows, is_mislabelled[rows], evidence.own[rows], evidence.other[rows], evidence.nearest[rows]
    )


def image_evidence(
    embeddings: np.ndarray,
    labels: np.ndarray,
    num_identities: int,
    trusted: np.ndarray,
    rows: np.ndarray | None = None,
    *,
    backend: str = "auto",
) -> Evidence:
    """Compares images with the centers of the trusted ones but themselves.

    Args:
        embeddings: [N, D].
        labels: int [N].
        num_identities: C.
        trusted: bool [N], the images that make the centers.
        rows: int64, the images to compare; default: all.
        backend: search engine, see `build_index`.
    """
    centers = identity_centers(embeddings, labels, num_identities, trusted)
    present = centers.present
    place = np.full(num_identities, -1, np.int64)
    place[present] = np.arange(len(present))
    index = build_index(centers.unit(), backend)
    num_rows = len(labels) if rows is None else len(rows)
    own = np.empty(num_rows, np.float32)
    other = np.empty(num_rows, np.float32)
    nearest = np.empty(num_rows, np.int64)
    for block, unit in unit_blocks(embeddings, rows):
        chosen = block if rows is None else rows[block]
        own[block] = _own(centers, labels[chosen], trusted[chosen], unit)
        scores, found = _nearest_other(index, unit, place[labels[chosen]])
        other[block], nearest[block] = scores, present[found]
    return Evidence(own, other, nearest)


def _own(centers: Centers, labels: np.ndarray, trusted: np.ndarray, unit: np.ndarray) -> np.ndarray:
    sums = centers.sums[labels]
    sums[trusted] -= unit[trusted]
    lengths = np.linalg.norm(sums, axis=1)
    num_others = centers.counts[labels] - trusted
    cosines = np.einsum("nd,nd->n", sums, unit)
    return np.divide(
        cosines, lengths, out=np.full(len(unit), np.nan, np.float32), where=num_others > 0
    )


def _nearest_other(
    index: SearchIndex, unit: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Score and row of the best match of each query that is not row `own` of the index."""
    scores, rows = index.search(unit, min(2, len(index.embeddings)))
    column = (rows[:, 0] == own).astype(np.int64)
    at = np.arange(len(unit)), column
    return scores[at], rows[at]
