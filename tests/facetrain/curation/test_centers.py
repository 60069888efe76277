"""Centers against means taken one identity at a time."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.curation import centers as module
from facetrain.curation.centers import identity_centers
from facetrain.errors import FacetrainError


@pytest.mark.parametrize("rows_per_block", [7, 10_000])
def test_centers_are_means_of_unit_embeddings(
    rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_BLOCK", rows_per_block)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(50, 8)).astype(np.float32) * 10
    labels = rng.integers(0, 9, 50)
    labels[labels == 4] = 5  # a class id without images
    chosen = rng.random(50) < 0.7
    chosen[labels == 2] = False
    for used in (np.ones(50, bool), chosen):
        centers = identity_centers(embeddings, labels, 9, None if used.all() else used)
        unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        present = [c for c in range(9) if (used & (labels == c)).any()]
        assert centers.present.tolist() == present
        for place, identity in enumerate(present):
            mine = used & (labels == identity)
            mean = unit[mine].mean(0)
            np.testing.assert_allclose(
                centers.unit()[place], mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-6
            )
            assert centers.counts[identity] == mine.sum()


def test_opposite_images_give_no_direction_and_so_no_center() -> None:
    embeddings = np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]], np.float32)
    centers = identity_centers(embeddings, np.array([0, 0, 1]), 2)
    assert centers.present.tolist() == [1]


def test_unusable_input_is_refused() -> None:
    with pytest.raises(FacetrainError, match="one label per image"):
        identity_centers(np.ones((3, 2)), np.zeros(2, np.int64), 1)
    with pytest.raises(FacetrainError, match="no direction"):
        identity_centers(np.full((3, 2), np.nan), np.zeros(3, np.int64), 1)
