"""Error rates against slow loops over every threshold, ties and edges included."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import (
    ScoreReport,
    auc,
    eer,
    roc,
    tar_at_far,
    tar_at_nearest_far,
)

# A coarse grid, so that ties within and between the kinds are the rule.
SCORES = st.lists(st.integers(-5, 5), min_size=1, max_size=12).map(
    lambda values: np.array(values, dtype=np.float32) / 4
)


def slow_points(genuine: np.ndarray, impostor: np.ndarray) -> list[tuple[float, float, float]]:
    """(threshold, FAR, TAR) at every score there is and above all of them, strictest first."""
    thresholds = [np.inf, *sorted({*genuine.tolist(), *impostor.tolist()}, reverse=True)]
    return [
        (
            t,
            sum(s >= t for s in impostor) / len(impostor),
            sum(s >= t for s in genuine) / len(genuine),
        )
        for t in thresholds
    ]


@settings(max_examples=150, deadline=None)
@given(SCORES, SCORES, st.sampled_from([1.0, 0.5, 0.25, 0.2, 0.1, 0.09]))
def test_tar_at_far_equals_a_search_over_all_thresholds(
    genuine: np.ndarray, impostor: np.ndarray, target: float
) -> None:
    point = tar_at_far(roc(genuine, impostor), target)
    if target < 1 / len(impostor):
        assert (point.far, point.tar, point.threshold) == (None, None, None)
        return
    allowed = [entry for entry in slow_points(genuine, impostor) if entry[1] <= target]
    best = max(tar for _, _, tar in allowed)
    assert point.tar == best
    assert point.far == min(far for _, far, tar in allowed if tar == best)
    assert point.threshold is not None
    # The threshold itself does what it says.
    assert np.mean(genuine >= point.threshold) == pytest.approx(point.tar)
    assert np.mean(impostor >= point.threshold) == pytest.approx(point.far)


@settings(max_examples=150, deadline=None)
@given(SCORES, SCORES)
def test_auc_is_the_chance_of_ranking_a_genuine_pair_higher(
    genuine: np.ndarray, impostor: np.ndarray
) -> None:
    wins = sum((g > i) + 0.5 * (g == i) for g in genuine for i in impostor)
    assert auc(roc(genuine, impostor)) == pytest.approx(wins / len(genuine) / len(impostor))


@settings(max_examples=150, deadline=None)
@given(SCORES, SCORES)
def test_eer_lies_on_the_curve_between_all_thresholds(
    genuine: np.ndarray, impostor: np.ndarray
) -> None:
    points = slow_points(genuine, impostor)
    expected = None
    for (_, far_0, tar_0), (_, far_1, tar_1) in itertools.pairwise(points):
        before, after = far_0 - (1 - tar_0), far_1 - (1 - tar_1)
        if expected is None and before < 0 <= after:
            expected = far_0 + (far_1 - far_0) * -before / (after - before)
    assert eer(roc(genuine, impostor)) == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(SCORES, SCORES)
def test_roc_is_monotone_and_holds_every_corner(genuine: np.ndarray, impostor: np.ndarray) -> None:
    curve = roc(genuine, impostor)
    assert (curve.far[0], curve.tar[0]) == (0, 0)
    assert (curve.far[-1], curve.tar[-1]) == (1, 1)
    assert (np.diff(curve.far) >= 0).all()
    assert (np.diff(curve.tar) >= 0).all()
    assert (np.diff(curve.thresholds) <= 0).all()
    for threshold, far, tar in zip(curve.thresholds, curve.far, curve.tar, strict=True):
        assert far == np.mean(impostor.astype(np.float64) >= threshold)
        assert tar == np.mean(genuine.astype(np.float64) >= threshold)


def test_far_equal_to_the_target_is_allowed() -> None:
    impostor = np.arange(1000) / 1000  # exactly one impostor at or above 0.999
    point = tar_at_far(roc(np.array([0.999, 0.5]), impostor), 1e-3)
    assert (point.far, point.tar, point.threshold) == (1e-3, 0.5, 0.999)


def test_target_below_one_impostor_is_not_measurable() -> None:
    curve = roc(np.ones(5), np.zeros(999))
    assert tar_at_far(curve, 1e-3).tar is None
    assert tar_at_far(curve, 1e-2).tar == 1.0
    with pytest.raises(FacetrainError, match="far_target 0"):
        tar_at_far(curve, 0.0)


def test_scores_without_overlap_are_perfect_or_hopeless() -> None:
    high, low = np.array([0.9, 0.8]), np.array([0.1, 0.2, 0.3])
    assert (eer(roc(high, low)), auc(roc(high, low))) == (0.0, 1.0)
    assert (eer(roc(low, high)), auc(roc(low, high))) == (1.0, 0.0)


def test_report_is_json_and_holds_its_figures() -> None:
    report = ScoreReport.of(np.array([0.9, 0.7]), np.array([0.1, 0.8]), far_targets=(0.5, 0.1))
    figures = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert figures["tar_at_far"][0] == {
        "far_target": 0.5,
        "far": 0.5,
        "tar": 1.0,
        "threshold": 0.7,
    }
    assert figures["tar_at_far"][1]["tar"] is None
    assert (figures["num_genuine"], figures["num_impostor"]) == (2, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(FacetrainError, match=r"genuine scores: 1 of 3 .* position 1"):
        roc(np.array([0.1, value, 0.2]), np.zeros(3))


def test_no_scores_are_refused() -> None:
    with pytest.raises(FacetrainError, match="impostor scores"):
        roc(np.ones(3), np.array([]))


@settings(max_examples=150, deadline=None)
@given(SCORES, SCORES, st.sampled_from([1.0, 0.5, 0.3, 0.25, 0.1]))
def test_nearest_far_equals_a_loop_over_corners(
    genuine: np.ndarray, impostor: np.ndarray, target: float
) -> None:
    point = tar_at_nearest_far(roc(genuine, impostor), target)
    if target < 1 / len(impostor):
        assert point.tar is None
        return
    # The corners: at each genuine score, just above it, and both ends.
    corners = [(0.0, 0.0), (1.0, 1.0)]
    for score in genuine:
        for far, tar in (
            (np.mean(impostor >= score), np.mean(genuine >= score)),
            (np.mean(impostor > score), np.mean(genuine > score)),
        ):
            corners.append((float(far), float(tar)))
    far, tar = min(corners, key=lambda corner: (abs(corner[0] - target), -corner[0], -corner[1]))
    assert (point.far, point.tar) == (far, tar)


def test_nearest_far_may_exceed_the_target_where_the_honest_rule_does_not() -> None:
    # Impostors 0.9 and 0.5 of ten; genuine 0.95, 0.8, 0.4. FAR 0.16 lies nearer to 0.2 than to 0.1.
    impostor = np.array([0.9, 0.5] + [0.0] * 8)
    curve = roc(np.array([0.95, 0.8, 0.4]), impostor)
    honest, nearest = tar_at_far(curve, 0.16), tar_at_nearest_far(curve, 0.16)
    assert (honest.far, honest.tar) == (0.1, pytest.approx(2 / 3))
    assert (nearest.far, nearest.tar) == (0.2, 1.0)


def test_unknown_rule_lists_the_known() -> None:
    with pytest.raises(FacetrainError, match="'best' is unknown; choose one of honest, nearest"):
        ScoreReport.of(np.ones(2), np.zeros(2), far_rule="best")
