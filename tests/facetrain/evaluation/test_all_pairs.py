"""Streamed counts against the exhaustive scores of every pair."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import all_pairs
from facetrain.evaluation.all_pairs import compare_all, roc_of_counts
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.identification import pair_scores
from facetrain.evaluation.metrics import ScoreReport, roc


def faces(num: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(12), 8))[:num] * 5
    embeddings = rng.normal(size=(60, 16))[labels] + 0.9 * rng.normal(size=(num, 16))
    return embeddings.astype(np.float32), labels


@pytest.mark.parametrize("blocks", [(1, 50), (7, 5), (32, 16), (512, 8192)])
def test_counts_and_rates_equal_those_of_all_scores(
    blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_pairs, "_ROWS_PER_BLOCK", blocks[0])
    monkeypatch.setattr(all_pairs, "_COLUMNS_PER_BLOCK", blocks[1])
    embeddings, labels = faces()
    done: list[int] = []
    targets = (1e-3, 1e-2, 1e-1, 1e-4)
    result = compare_all(embeddings, labels, far_targets=targets, progress=done.append)
    genuine, impostor = pair_scores(unit_embeddings(embeddings), labels)
    assert (result.genuine.sum(), result.impostor.sum()) == (len(genuine), len(impostor))
    exact = ScoreReport.of(genuine, impostor, targets)
    assert result.scores.eer == pytest.approx(exact.eer, abs=1e-3)
    assert result.scores.auc == pytest.approx(exact.auc, abs=1e-5)
    for found, wanted in zip(result.scores.tar_at_far, exact.tar_at_far, strict=True):
        if wanted.tar is None:  # 3,700 impostor pairs
            assert (found.tar, found.threshold) == (None, None)
            continue
        assert found.threshold is not None
        # The threshold is the edge of a cell, so what it accepts is exact.
        assert found.tar == np.mean(genuine >= found.threshold)
        assert found.far == np.mean(impostor >= found.threshold) <= found.far_target
        assert found.tar == pytest.approx(wanted.tar, abs=1.5 / len(genuine))
    assert done[-1] == 90


def test_worst_pairs_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_pairs, "_ROWS_PER_BLOCK", 13)
    monkeypatch.setattr(all_pairs, "_COLUMNS_PER_BLOCK", 9)
    embeddings, labels = faces()
    unit = unit_embeddings(embeddings)
    worst = compare_all(embeddings, labels, num_worst=5).worst
    pairs = list(itertools.combinations(range(len(labels)), 2))
    for found, same, sign in ((worst.false_matches, False, -1), (worst.misses, True, 1)):
        scored = [
            (float(unit[a] @ unit[b]), a, b) for a, b in pairs if (labels[a] == labels[b]) == same
        ]
        scored.sort(key=lambda item: sign * item[0])
        assert [{p.left, p.right} for p in found] == [{a, b} for _, a, b in scored[:5]]
        np.testing.assert_allclose(
            [p.score for p in found], [s for s, _, _ in scored[:5]], atol=1e-6
        )


def test_curve_of_counts_equals_that_of_scores_at_the_edges() -> None:
    # Four cells of cosine: [-1, -.5), [-.5, 0), [0, .5), [.5, 1].
    genuine, impostor = np.array([0, 1, 0, 2]), np.array([2, 1, 1, 0])
    curve = roc_of_counts(genuine, impostor)
    middles = np.array([-0.75, -0.25, 0.25, 0.75])
    scores = roc(np.repeat(middles, genuine), np.repeat(middles, impostor))
    assert set(zip(curve.far, curve.tar, strict=True)) >= set(
        zip(scores.far, scores.tar, strict=True)
    )
    assert curve.thresholds.tolist() == [1.5, 0.5, 0.0, -0.5, -1.0]
    assert curve.far.tolist() == [0.0, 0.0, 0.25, 0.5, 1.0]
    assert curve.tar.tolist() == [0.0, 2 / 3, 2 / 3, 1.0, 1.0]
    with pytest.raises(FacetrainError, match="one kind only"):
        roc_of_counts(genuine, np.zeros(4, int))


def test_copies_of_an_image_are_accepted_only_at_thresholds_of_one() -> None:
    embeddings = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
    result = compare_all(embeddings, np.array([0, 0, 1, 1]), far_targets=(0.5,))
    # Genuine: 1, 0. Impostor: 1, 1, 0, 0. FAR 0.5 takes the copies of both kinds.
    (point,) = result.scores.tar_at_far
    assert (point.tar, point.far) == (0.5, 0.5)
    assert point.threshold == pytest.approx(1.0, abs=result.resolution)
    json.dumps(result.to_dict(), allow_nan=False)


def test_bad_input_is_refused() -> None:
    embeddings, labels = faces(20)
    with pytest.raises(FacetrainError, match="20 images of 1 identities"):
        compare_all(embeddings, np.zeros(20, int))
    with pytest.raises(FacetrainError, match="20 images of 20 identities"):
        compare_all(embeddings, np.arange(20))
    with pytest.raises(FacetrainError, match=r"labels \[3\]"):
        compare_all(embeddings, labels[:3])
    embeddings[4] = np.nan
    with pytest.raises(FacetrainError, match="row 4"):
        compare_all(embeddings, labels)
