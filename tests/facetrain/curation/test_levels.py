"""Levels against what random directions must give, and their robustness."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.curation.centers import identity_centers
from facetrain.curation.levels import Levels, measure_levels, spread
from facetrain.errors import FacetrainError
from facetrain.evaluation.search import build_index


def levels_of(embeddings: np.ndarray, labels: np.ndarray, num_identities: int) -> Levels:
    centers = identity_centers(embeddings, labels, num_identities)
    return measure_levels(centers, build_index(centers.unit(), "torch"))


def test_median_and_mad_of_a_normal_sample() -> None:
    measured = spread(np.random.default_rng(0).normal(0.3, 0.05, 100_000))
    assert measured.median == pytest.approx(0.3, abs=1e-3)
    assert measured.std == pytest.approx(0.05, rel=0.02)
    assert measured.above(2.0) == pytest.approx(0.4, abs=3e-3)


def test_random_directions_have_the_spread_of_their_dimension() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(500, 64))
    levels = levels_of(embeddings, np.arange(500), 500)
    assert levels.random.median == pytest.approx(0.0, abs=0.005)
    assert levels.random.std == pytest.approx(1 / 8, rel=0.05)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(500)
    assert levels.nearest.median == pytest.approx(np.median(cosines.max(1)), abs=1e-6)
    assert levels.outlier < levels.strangers < levels.same_person


def test_split_identities_hardly_move_the_levels() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(500, 64))
    clean = levels_of(embeddings, np.arange(500), 500)
    doubled = np.concatenate([embeddings, embeddings[:15] + 0.1 * rng.normal(size=(15, 64))])
    levels = levels_of(doubled, np.arange(515), 515)
    assert levels.same_person == pytest.approx(clean.same_person, abs=0.03)


def test_too_few_identities_are_refused() -> None:
    with pytest.raises(FacetrainError, match="19 identities are too few"):
        levels_of(np.random.default_rng(0).normal(size=(19, 8)), np.arange(19), 19)
