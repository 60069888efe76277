"""Identities that are two people under one label.

The images of an identity are parted in two by spherical k-means (I. Dhillon, D. Modha, "Concept
decompositions for large sparse text data", Machine Learning 2001), begun at the image farthest from
the rest and the one farthest from that. One person's parts look alike; two people's look like
strangers: the cosine between the parts' centers says which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from facetrain.evaluation.embeddings import unit_embeddings

_MAX_ROUNDS = 20
_MAX_IMAGES = 1000


@dataclass(frozen=True, eq=False)
class MixedIdentity:
    """An identity whose images fall into two that do not look alike.

    Attributes:
        identity: class id.
        first: int64, rows of the larger part.
        second: int64, rows of the other.
        cosine: between the centers of the parts.
    """

    identity: int
    first: np.ndarray
    second: np.ndarray
    cosine: float


def mixed_identities(
    embeddings: np.ndarray,
    labels: np.ndarray,
    threshold: float,
    *,
    min_part: int = 2,
    seed: int = 0,
) -> list[MixedIdentity]:
    """Identities whose parts' centers have a cosine below `threshold`, the least alike first.

    Args:
        embeddings: [N, D].
        labels: int [N].
        threshold: what strangers may reach.
        min_part: parts of fewer images are outliers, not people.
        seed: for the 1000 images looked at where an identity has more.
    """
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    rng = np.random.default_rng(seed)
    found = []
    for rows in np.split(order, starts[1:]):
        if len(rows) < 2 * min_part:
            continue
        if len(rows) > _MAX_IMAGES:
            rows = np.sort(rng.choice(rows, _MAX_IMAGES, replace=False))
        in_second, cosine = part(unit_embeddings(embeddings[rows]))
        parts = sorted((rows[~in_second], rows[in_second]), key=len, reverse=True)
        if cosine < threshold and len(parts[1]) >= min_part:
            found.append(MixedIdentity(int(labels[rows[0]]), parts[0], parts[1], cosine))
    return sorted(found, key=lambda mixed: mixed.cosine)


def part(unit: np.ndarray) -> tuple[np.ndarray, float]:
    """Two clusters of unit rows [M, D], M at least 2.

    Returns:
        bool [M], the rows of the second, and the cosine between the two centers.
    """
    far = int(np.argmin(unit @ unit.sum(axis=0)))
    centers = unit[[far, int(np.argmin(unit @ unit[far]))]]
    in_second = np.zeros(len(unit), dtype=bool)
    for round_ in range(_MAX_ROUNDS):
        before = in_second
        cosines = unit @ centers.T
        in_second = cosines[:, 1] > cosines[:, 0]
        if not in_second.any() or in_second.all():
            return np.zeros(len(unit), dtype=bool), 1.0
        if round_ and (in_second == before).all():
            break
        sums = np.stack([unit[~in_second].sum(axis=0), unit[in_second].sum(axis=0)])
        centers = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return in_second, float(centers[0] @ centers[1])
