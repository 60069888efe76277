"""Several faces of one person as one embedding: the templates of IJB, pooled by name.

Legend: N faces, T templates, D embedding size.

    ids, unit = pool_templates(embeddings, templates, media, scores, "media-score")

"media-score" is that of the public IJB protocol: each face times its detector score, the mean over
each media (a video's frames count as one), the sum over the template, unit length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from facetrain.errors import FacetrainError

_FACES_PER_BLOCK = 16_384


@dataclass(frozen=True)
class Pooling:
    """How faces become a template.

    Attributes:
        unit_faces: each face is brought to unit length first; else longer ones count more.
        by_score: each face is multiplied by its detector score.
        by_media: the faces of one media are averaged before all are added.
    """

    unit_faces: bool
    by_score: bool
    by_media: bool


POOLINGS = {
    "media-score": Pooling(unit_faces=False, by_score=True, by_media=True),
    "media": Pooling(unit_faces=False, by_score=False, by_media=True),
    "media-unit": Pooling(unit_faces=True, by_score=False, by_media=True),
    "media-unit-score": Pooling(unit_faces=True, by_score=True, by_media=True),
    "mean": Pooling(unit_faces=False, by_score=False, by_media=False),
    "mean-unit": Pooling(unit_faces=True, by_score=False, by_media=False),
}


@dataclass(frozen=True, eq=False)
class Templates:
    """Pooled templates.

    Attributes:
        ids: int64 [T], ascending.
        unit: float32 [T, D], of unit length.
        first_face: row of a face of each, int64 [T], for pictures.
    """

    ids: np.ndarray
    unit: np.ndarray
    first_face: np.ndarray

    def rows(self, ids: np.ndarray, what: str = "pairs") -> np.ndarray:
        """Row of each template id, int64.

        Raises:
            FacetrainError: an id that no face has.
        """
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        absent = np.flatnonzero(self.ids[rows] != ids)
        if len(absent):
            raise FacetrainError(
                f"{what}: template {ids[absent[0]]} has no faces, and so do {len(absent)} of "
                f"{len(ids)}; the lists are of another set"
            )
        return rows


def pool_templates(
    embeddings: np.ndarray,
    templates: np.ndarray,
    media: np.ndarray,
    scores: np.ndarray,
    pooling: str = "media-score",
) -> Templates:
    """Pools faces to templates, some thousand faces at a time.

    Args:
        embeddings: float32 [N, D], as the model gives them.
        templates: id of each face's template, int [N].
        media: id of each face's media, int [N]; media of two templates are two.
        scores: detector score of each face [N].
        pooling: one of `POOLINGS`.

    Raises:
        FacetrainError: unknown pooling, lengths that differ, an embedding that is NaN or infinite,
            or a template whose faces cancel out.
    """
    if pooling not in POOLINGS:
        raise FacetrainError(f"pooling {pooling!r} is unknown; choose one of {', '.join(POOLINGS)}")
    how = POOLINGS[pooling]
    num_faces = len(templates)
    if embeddings.ndim != 2 or not len(embeddings) == num_faces == len(media) == len(scores) > 0:
        raise FacetrainError(
            f"embeddings {list(embeddings.shape)} for {num_faces} faces: expected one row each"
        )
    order = np.lexsort((media, templates))
    ids, starts = np.unique(templates[order], return_index=True)
    unit = np.empty((len(ids), embeddings.shape[1]), dtype=np.float32)
    for first, last in _blocks(np.append(starts, num_faces)):
        faces = order[starts[first] : starts[last] if last < len(ids) else num_faces]
        block = _pooled(embeddings, templates, media, scores, faces, how)
        norms = np.linalg.norm(block, axis=1)
        empty = np.flatnonzero(norms == 0.0)
        if len(empty):
            raise FacetrainError(
                f"template {ids[first + empty[0]]}: its faces add up to nothing (zero embeddings "
                "or detector scores); leave it out, or choose a pooling without scores"
            )
        unit[first:last] = block / norms[:, None]
    return Templates(ids, unit, order[starts])


def _blocks(bounds: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of whole templates of about as many faces; `bounds` of T templates has T + 1."""
    first, num = 0, len(bounds) - 1
    while first < num:
        last = int(np.searchsorted(bounds, bounds[first] + _FACES_PER_BLOCK, side="right")) - 1
        last = min(max(last, first + 1), num)
        yield first, last
        first = last


def _pooled(
    embeddings: np.ndarray,
    templates: np.ndarray,
    media: np.ndarray,
    scores: np.ndarray,
    faces: np.ndarray,
    how: Pooling,
) -> np.ndarray:
    """Sums float64 [templates of the block, D] of faces that are in order of template and media."""
    values = embeddings[faces].astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise FacetrainError(
            f"embeddings: row {faces[bad[0]]} is NaN or infinite; check the model or the features"
        )
    if how.unit_faces:
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        # A face without direction adds nothing; a template of such faces is named by the caller.
        values = np.divide(values, norms, out=np.zeros_like(values), where=norms > 0.0)
    if how.by_score:
        values *= scores[faces, None]
    template = templates[faces]
    if how.by_media:
        new = np.flatnonzero(np.diff(template) | np.diff(media[faces])) + 1
        starts = np.append(0, new)
        sizes = np.diff(np.append(starts, len(faces)))
        values = np.add.reduceat(values, starts, axis=0) / sizes[:, None]
        template = template[starts]
    starts = np.append(0, np.flatnonzero(np.diff(template)) + 1)
    return np.add.reduceat(values, starts, axis=0)
