"""Pooling by hand, and against a loop over templates and media."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import templates as module
from facetrain.evaluation.templates import POOLINGS, pool_templates

# Template 5: media 1 with faces (2, 0) and (0, 2), media 2 with (0, 6). Template 9: one face.
EMBEDDINGS = np.array([[2, 0], [0, 2], [0, 6], [3, 4]], dtype=np.float32)
TEMPLATES, MEDIA = np.array([5, 5, 5, 9]), np.array([1, 1, 2, 1])
SCORES = np.array([1.0, 0.5, 0.5, 0.1], dtype=np.float32)


@pytest.mark.parametrize(
    ("pooling", "sums"),
    [
        ("media-score", (1.0, 3.5)),  # ((2,0) + (0,1)) / 2 + (0,3)
        ("media", (1.0, 7.0)),  # ((2,0) + (0,2)) / 2 + (0,6)
        ("media-unit", (0.5, 1.5)),  # ((1,0) + (0,1)) / 2 + (0,1)
        ("media-unit-score", (0.5, 0.75)),  # ((1,0) + (0,.5)) / 2 + (0,.5)
        ("mean", (2.0, 8.0)),
        ("mean-unit", (1.0, 2.0)),
    ],
)
def test_pooling_by_hand(pooling: str, sums: tuple[float, float]) -> None:
    pooled = pool_templates(EMBEDDINGS, TEMPLATES, MEDIA, SCORES, pooling)
    assert pooled.ids.tolist() == [5, 9]
    np.testing.assert_allclose(pooled.unit[0], np.array(sums) / np.hypot(*sums), rtol=1e-6)
    np.testing.assert_allclose(pooled.unit[1], [0.6, 0.8], rtol=1e-6)
    assert TEMPLATES[pooled.first_face].tolist() == [5, 9]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("block", [1, 7, 10_000])
def test_pooling_equals_a_loop_whatever_the_blocks(
    pooling: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FACES_PER_BLOCK", block)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(60, 4)).astype(np.float32)
    templates, media = rng.integers(0, 9, 60) * 3, rng.integers(0, 4, 60)
    scores = rng.uniform(0.5, 1, 60).astype(np.float32)
    pooled = pool_templates(embeddings, templates, media, scores, pooling)
    how = POOLINGS[pooling]
    for template, found in zip(pooled.ids, pooled.unit, strict=True):
        parts = []
        for group in np.unique(media) if how.by_media else [None]:
            faces = [
                embeddings[row].astype(float)
                / (np.linalg.norm(embeddings[row].astype(float)) if how.unit_faces else 1)
                * (scores[row] if how.by_score else 1)
                for row in range(60)
                if templates[row] == template and group in (None, media[row])
            ]
            if faces:
                parts.append(np.mean(faces, axis=0))
        total = np.sum(parts, axis=0)
        np.testing.assert_allclose(found, total / np.linalg.norm(total), rtol=1e-5, atol=1e-6)


def test_ids_without_faces_are_named() -> None:
    pooled = pool_templates(EMBEDDINGS, TEMPLATES, MEDIA, SCORES)
    assert pooled.rows(np.array([9, 5, 9])).tolist() == [1, 0, 1]
    for absent in (6, 10, 1):
        with pytest.raises(FacetrainError, match=f"template {absent} has no faces.* 1 of 2"):
            pooled.rows(np.array([5, absent]))


def test_templates_without_direction_and_bad_embeddings_are_named() -> None:
    with pytest.raises(FacetrainError, match="template 9: its faces add up to nothing"):
        pool_templates(EMBEDDINGS, TEMPLATES, MEDIA, np.array([1, 1, 1, 0]))
    assert (
        len(pool_templates(EMBEDDINGS, TEMPLATES, MEDIA, np.array([1, 1, 1, 0]), "media").ids) == 2
    )
    opposite = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    for pooling in POOLINGS:
        with pytest.raises(FacetrainError, match="template 3"):
            pool_templates(opposite, np.array([3, 3]), np.array([1, 1]), np.ones(2), pooling)
    broken = EMBEDDINGS.copy()
    broken[2, 1] = np.nan
    with pytest.raises(FacetrainError, match="row 2 is NaN"):
        pool_templates(broken, TEMPLATES, MEDIA, SCORES)
    with pytest.raises(FacetrainError, match=r"embeddings \[3, 2\] for 4 faces"):
        pool_templates(EMBEDDINGS[:3], TEMPLATES, MEDIA, SCORES)
    with pytest.raises(FacetrainError, match="'max' is unknown; choose one of media-score"):
        pool_templates(EMBEDDINGS, TEMPLATES, MEDIA, SCORES, "max")
