"""Intervals against replicates made by copying pairs as often as their people were drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import verify
from facetrain.evaluation.bootstrap import bootstrap
from facetrain.evaluation.folds import kfold_accuracy
from facetrain.evaluation.metrics import ScoreReport
from facetrain.evaluation.verification import VerificationResult

TARGETS = (0.5, 0.1, 1e-3)


def people(num: int = 8, images: int = 3) -> tuple[VerificationResult, np.ndarray, np.ndarray]:
    """A verification of all pairs of some people; identities of left and right."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(num), images)
    embeddings = rng.normal(size=(num, 6))[labels] + 0.9 * rng.normal(size=(len(labels), 6))
    left, right = np.triu_indices(len(labels), 1)
    order = rng.permutation(len(left))
    left, right = left[order], right[order]
    is_same = labels[left] == labels[right]
    result = verify(embeddings.astype(np.float32), left, right, is_same, 4, TARGETS)
    return result, labels[left] + 100, labels[right] + 100


def slow_bootstrap(
    result: VerificationResult, left: np.ndarray, right: np.ndarray, num: int
) -> dict[str, list[float]]:
    """The same draws, each pair copied instead of weighted."""
    rng = np.random.default_rng(0)
    names = sorted({*left.tolist(), *right.tolist()})
    figures: dict[str, list[float]] = {"accuracy": [], "eer": [], "0.5": [], "0.1": []}
    for _ in range(num):
        times = dict(
            zip(names, rng.multinomial(len(names), [1 / len(names)] * len(names)), strict=True)
        )
        rows = [
            row
            for row in range(len(left))
            for _ in range(
                times[left[row]]
                if left[row] == right[row]
                else times[left[row]] * times[right[row]]
            )
        ]
        same, cosines = result.is_same[rows], result.cosines[rows]
        if same.all() or not same.any():
            continue
        report = ScoreReport.of(cosines[same], cosines[~same], TARGETS[:2])
        accuracy = kfold_accuracy(result.distances[rows], same, result.fold_of_pair[rows])
        figures["accuracy"].append(accuracy.mean)
        figures["eer"].append(report.eer)
        for target, point in zip(("0.5", "0.1"), report.tar_at_far, strict=True):
            assert point.tar is not None
            figures[target].append(point.tar)
    return figures


def test_intervals_equal_those_of_copied_pairs() -> None:
    result, left, right = people()
    found = bootstrap(result, left, right, num_replicates=60)
    slow = slow_bootstrap(result, left, right, 60)
    assert (found.over, found.num_units) == ("identities", 8)
    assert found.num_replicates == len(slow["eer"])
    intervals = {"accuracy": found.accuracy, "eer": found.eer}
    intervals.update(zip(("0.5", "0.1"), found.tar_at_far, strict=False))
    for name, interval in intervals.items():
        low, high = np.percentile(slow[name], [2.5, 97.5])
        assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high)), name
    assert found.tar_at_far[2] is None  # not measurable: no interval either
    json.dumps(found.to_dict(), allow_nan=False)


def test_interval_holds_the_figure_and_is_wider_over_people_than_over_pairs() -> None:
    result, left, right = people(num=12, images=5)
    by_people, by_pairs = bootstrap(result, left, right), bootstrap(result)
    assert by_pairs.over == "pairs, since identities are unknown"
    assert by_pairs.num_units == len(left)
    for found in (by_people, by_pairs):
        assert found.eer.low <= result.scores.eer <= found.eer.high
    assert by_people.eer.high - by_people.eer.low > by_pairs.eer.high - by_pairs.eer.low


def test_same_seed_gives_the_same_intervals() -> None:
    result, left, right = people()
    first, again, other = (
        bootstrap(result, left, right, num_replicates=20, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_no_draws_are_refused() -> None:
    with pytest.raises(FacetrainError, match="num_replicates 0"):
        bootstrap(people()[0], num_replicates=0)
