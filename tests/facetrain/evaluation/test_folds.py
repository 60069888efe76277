"""K-fold accuracy against loops over every threshold."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation.folds import (
    FOLD_THRESHOLDS,
    contiguous_folds,
    dealt_folds,
    kfold_accuracy,
)


def slow_kfold(
    distances: np.ndarray, is_same: np.ndarray, folds: np.ndarray
) -> tuple[list[float], list[float]]:
    accuracies, thresholds = [], []
    for fold in range(folds.max() + 1):
        train, test = folds != fold, folds == fold
        right = [((distances[train] < t) == is_same[train]).sum() for t in FOLD_THRESHOLDS]
        tied = [t for t, count in zip(FOLD_THRESHOLDS, right, strict=True) if count == max(right)]
        best_threshold = tied[len(tied) // 2]
        thresholds.append(best_threshold)
        accuracies.append(np.mean((distances[test] < best_threshold) == is_same[test]))
    return accuracies, thresholds


@pytest.mark.parametrize("num_pairs", [20, 103])
@pytest.mark.parametrize("on_grid", [False, True])
def test_kfold_accuracy_equals_a_loop_over_thresholds(num_pairs: int, on_grid: bool) -> None:
    rng = np.random.default_rng(num_pairs)
    is_same = rng.random(num_pairs) < 0.5
    distances = np.clip(rng.normal(np.where(is_same, 1.0, 1.6), 0.4), 0, 4)
    if on_grid:  # distances that equal a threshold are not below it
        distances = FOLD_THRESHOLDS[np.searchsorted(FOLD_THRESHOLDS, distances) - 1]
    folds = contiguous_folds(num_pairs, 10)
    result = kfold_accuracy(distances, is_same, folds)
    accuracies, thresholds = slow_kfold(distances, is_same, folds)
    assert result.accuracies.tolist() == pytest.approx(accuracies)
    assert result.thresholds.tolist() == thresholds
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert result.std == pytest.approx(np.std(accuracies))


def test_folds_follow_the_file_or_deal_each_kind() -> None:
    assert contiguous_folds(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    is_same = np.array([True, True, True, False, False, False, False])
    assert dealt_folds(is_same, 2).tolist() == [0, 1, 0, 0, 1, 0, 1]
    for num_folds in (1, 8):
        with pytest.raises(FacetrainError, match=f"num_folds {num_folds}: must be 2 to 7"):
            contiguous_folds(7, num_folds)


def test_kfold_accuracy_refuses_lengths_that_differ() -> None:
    with pytest.raises(FacetrainError, match="as many of each"):
        kfold_accuracy(np.zeros(3), np.array([True, False]), np.array([0, 1]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_distances_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(FacetrainError, match="pair distances: 1 of 2"):
        kfold_accuracy(np.array([value, 0.0]), np.array([True, False]), np.array([0, 1]))
