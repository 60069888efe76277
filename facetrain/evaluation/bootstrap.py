"""Confidence intervals of a verification by the bootstrap over identities.

The pairs of one person are not independent, so people are drawn with replacement and not pairs: a
genuine pair counts as often as its identity was drawn, an impostor pair as often as the product of
its two. Where identities are unknown pairs are drawn, and the intervals come out too narrow.
Bolle et al., "The relation between the ROC curve and the CMC", 2005 (the subsets bootstrap).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.folds import kfold_accuracy
from facetrain.evaluation.metrics import Roc, eer, far_rule_named
from facetrain.evaluation.verification import VerificationResult

DEFAULT_REPLICATES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Between these two values lie 95 % of the replicates."""

    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Interval:
        tail = 50.0 * (1.0 - _CONFIDENCE)
        low, high = np.percentile(values, [tail, 100.0 - tail])
        return cls(float(low), float(high))


@dataclass(frozen=True)
class Bootstrap:
    """Intervals of the figures of a verification.

    Attributes:
        over: what was drawn.
        num_units: of these.
        num_replicates: draws that held both kinds of pair.
        accuracy: of the mean over the folds.
        eer: of the equal error rate.
        tar_at_far: one per operating point, None where that cannot be measured.
    """

    over: str
    num_units: int
    num_replicates: int
    accuracy: Interval
    eer: Interval
    tar_at_far: tuple[Interval | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """The intervals, for a JSON file."""

        def ends(interval: Interval | None) -> list[float] | None:
            return None if interval is None else [interval.low, interval.high]

        return {
            "over": self.over,
            "num_units": self.num_units,
            "num_replicates": self.num_replicates,
            "confidence": _CONFIDENCE,
            "accuracy": ends(self.accuracy),
            "eer": ends(self.eer),
            "tar_at_far": [ends(interval) for interval in self.tar_at_far],
        }


def bootstrap(
    result: VerificationResult,
    left: np.ndarray | None = None,
    right: np.ndarray | None = None,
    *,
    num_replicates: int = DEFAULT_REPLICATES,
    seed: int = 0,
) -> Bootstrap:
    """Intervals of a result.

    Args:
        result: of `verify`.
        left: identity of the first image of each pair, int [P]; None where unknown.
        right: identity of the second.
        num_replicates: draws.
        seed: of the draws.

    Raises:
        FacetrainError: fewer than 1 draw, or no draw that holds both kinds of pair.
    """
    if num_replicates < 1:
        raise FacetrainError(f"num_replicates {num_replicates}: must be at least 1")
    rng = np.random.default_rng(seed)
    if left is None or right is None:
        over, num_units = "pairs, since identities are unknown", len(result.is_same)
    else:
        over = "identities"
        units, rows = np.unique(np.concatenate([left, right]), return_inverse=True)
        left, right = rows[: len(left)], rows[len(left) :]
        num_units = len(units)

    curves = _WeightedCurve(result)
    accuracies, eers, tars = [], [], []
    for _ in range(num_replicates):
        drawn = rng.multinomial(num_units, np.full(num_units, 1.0 / num_units))
        weights = drawn
        if left is not None and right is not None:
            weights = np.where(result.is_same, drawn[left], drawn[left] * drawn[right])
        curve = curves.roc(weights)
        if curve is None:
            continue
        folds = kfold_accuracy(
            result.distances, result.is_same, result.fold_of_pair, result.thresholds, weights
        )
        accuracies.append(folds.mean)
        eers.append(eer(curve))
        rule = far_rule_named(result.scores.far_rule)
        tars.append([rule(curve, point.far_target).tar for point in result.scores.tar_at_far])
    if not eers:
        raise FacetrainError(
            f"bootstrap: none of {num_replicates} draws of {num_units} {over} holds both kinds of "
            "pair; there are too few"
        )
    return Bootstrap(
        over=over,
        num_units=num_units,
        num_replicates=len(eers),
        accuracy=Interval.of(np.array(accuracies)),
        eer=Interval.of(np.array(eers)),
        tar_at_far=tuple(
            None if values[0] is None else Interval.of(np.array(values, dtype=np.float64))
            for values in zip(*tars, strict=True)
        ),
    )


class _WeightedCurve:
    """ROC curves of the same scores under different weights; sorted once."""

    def __init__(self, result: VerificationResult) -> None:
        scores = 1.0 - result.distances / 2.0
        self._order = np.argsort(-scores, kind="stable")
        ordered = scores[self._order]
        # Equal scores are accepted together: a point stands at the last of each.
        self._ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
        self._thresholds = np.append(np.inf, ordered[self._ends])
        self._is_same = result.is_same[self._order]
        self._counts = result.scores.roc.num_genuine, result.scores.roc.num_impostor

    def roc(self, weights: np.ndarray) -> Roc | None:
        """The curve, or None where one kind of pair has no weight."""
        weights = weights[self._order].astype(np.float64)
        rates = []
        for kind in (~self._is_same, self._is_same):
            accepted = np.append(0.0, np.cumsum(weights * kind)[self._ends])
            if accepted[-1] == 0.0:
                return None
            rates.append(accepted / accepted[-1])
        # What can be measured is decided by the pairs there are, not by how many were drawn.
        return Roc(self._thresholds, rates[0], rates[1], *self._counts)
