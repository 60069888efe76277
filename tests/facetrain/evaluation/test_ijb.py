"""The IJB protocol by hand on a made-up set of five templates."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation.ijb import pair_cosines, search_galleries, verify_templates
from facetrain.evaluation.templates import Templates

# Templates 10, 20, .. at these angles.
ANGLES = np.radians([0, 10, 90, 105, 200])
TEMPLATES = Templates(
    ids=np.array([10, 20, 30, 40, 50]),
    unit=np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32),
    first_face=np.arange(5),
)


def test_verification_by_hand() -> None:
    # Genuine: 10-20 (10 degrees), 30-40 (15). Impostor: 10-30 (90), 20-40 (95), 40-50 (95), 10-40.
    pairs = [
        (np.array([10, 30]), np.array([20, 40]), np.array([True, True])),
        (np.array([10, 20, 40, 10]), np.array([30, 40, 50, 40]), np.zeros(4, bool)),
    ]
    result = verify_templates(TEMPLATES, iter(pairs), far_targets=(0.25, 1e-3))
    measured, below = result.scores.tar_at_far
    assert (measured.tar, below.tar) == (1.0, None)
    assert (result.scores.roc.num_genuine, result.scores.roc.num_impostor) == (2, 4)
    assert result.scores.eer == 0.0
    worst = result.worst.false_matches[0]
    assert (worst.left, worst.right, worst.score) == (0, 2, pytest.approx(0.0, abs=1e-6))
    assert (result.worst.misses[0].left, result.worst.misses[0].right) == (2, 3)


def test_pair_cosines_are_dot_products() -> None:
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(9, 5)).astype(np.float32)
    left, right = rng.integers(0, 9, (2, 40))
    expected = [unit[a] @ unit[b] for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(pair_cosines(unit, left, right), expected, rtol=1e-5)


def test_pairs_of_one_kind_and_unknown_templates_are_refused() -> None:
    with pytest.raises(FacetrainError, match="impostor scores"):
        verify_templates(TEMPLATES, [(np.array([10]), np.array([20]), np.array([True]))])
    with pytest.raises(FacetrainError, match="genuine scores"):
        verify_templates(TEMPLATES, [])
    with pytest.raises(FacetrainError, match="template 11 has no faces"):
        verify_templates(TEMPLATES, [(np.array([11]), np.array([20]), np.array([True]))])


def test_two_galleries_each_and_their_mean() -> None:
    galleries = {
        "G1": (np.array([10, 30]), np.array([1, 3])),
        "G2": (np.array([50]), np.array([5])),
    }
    # Probe 20 of subject 1, 40 of 3, and 30 as a face of subject 5.
    probes = (np.array([20, 40, 30]), np.array([1, 3, 5]))
    result = search_galleries(TEMPLATES, galleries, probes, "torch", far_targets=(1.0, 0.5))
    first, second = result.galleries.values()
    assert first.ranks.tolist() == [1, 1]
    # Subject 5 is not in G1, and its template is that of subject 3: one unmated probe, score 1.
    np.testing.assert_allclose(first.unmated, [1.0], atol=1e-6)
    assert [point.tar for point in first.dir_at_far] == [1.0, None]
    assert second.ranks.tolist() == [1]
    assert len(second.unmated) == 2
    mean = result.mean()
    assert mean["rank"]["1"] == 1.0
    assert [point["tar"] for point in mean["tpir_at_fpir"]] == [1.0, None]
    with pytest.raises(FacetrainError, match="no gallery"):
        search_galleries(TEMPLATES, {}, probes)
    with pytest.raises(FacetrainError, match="gallery G: template 60 has no faces"):
        search_galleries(TEMPLATES, {"G": (np.array([60]), np.array([1]))}, probes)
