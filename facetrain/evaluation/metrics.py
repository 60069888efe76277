"""Error rates of a face verifier from its scores; NumPy only.

A pair is accepted where score >= threshold. TAR is the share of genuine pairs (one identity) that
are accepted, FAR that of impostor pairs. TAR@FAR=x is the largest TAR of any threshold whose FAR is
at most x; it cannot be measured when x is below one pair in the impostors there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError

FAR_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True, eq=False)
class Roc:
    """The corners of the ROC curve, strictest threshold first, from (0, 0) to (1, 1).

    Between two corners the curve is straight, so nothing is lost against listing every score.

    Attributes:
        thresholds: float64 [T], descending; accept where score >= threshold.
        far: false accept rate [T], ascending.
        tar: true accept rate [T], ascending.
        num_genuine: pairs of one identity.
        num_impostor: pairs of two identities.
    """

    thresholds: np.ndarray
    far: np.ndarray
    tar: np.ndarray
    num_genuine: int
    num_impostor: int


@dataclass(frozen=True)
class OperatingPoint:
    """TAR at a target FAR; the last three are None where the target cannot be measured."""

    far_target: float
    far: float | None
    tar: float | None
    threshold: float | None


@dataclass(frozen=True, eq=False)
class RateReport:
    """Everything that follows from a ROC curve.

    Attributes:
        roc: the curve.
        eer: equal error rate, where FAR = 1 - TAR.
        auc: area under the curve.
        tar_at_far: one operating point per target FAR.
        far_rule: name of the rule that chose them, see `FAR_RULES`.
    """

    roc: Roc
    eer: float
    auc: float
    tar_at_far: tuple[OperatingPoint, ...]
    far_rule: str

    @classmethod
    def of_roc(
        cls, curve: Roc, far_targets: Sequence[float] = FAR_TARGETS, far_rule: str = "honest"
    ) -> RateReport:
        """The rates of a curve.

        Raises:
            FacetrainError: a target outside (0, 1], or an unknown rule.
        """
        rule = far_rule_named(far_rule)
        points = tuple(rule(curve, target) for target in far_targets)
        return cls(curve, eer(curve), auc(curve), points, far_rule)

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {
            "num_genuine": self.roc.num_genuine,
            "num_impostor": self.roc.num_impostor,
            "eer": self.eer,
            "auc": self.auc,
            "far_rule": self.far_rule,
            "tar_at_far": [asdict(point) for point in self.tar_at_far],
        }


@dataclass(frozen=True, eq=False)
class ScoreReport(RateReport):
    """The rates, and the scores they follow from.

    Attributes:
        genuine: scores of genuine pairs.
        impostor: scores of impostor pairs.
    """

    genuine: np.ndarray
    impostor: np.ndarray

    @classmethod
    def of(
        cls,
        genuine: np.ndarray,
        impostor: np.ndarray,
        far_targets: Sequence[float] = FAR_TARGETS,
        far_rule: str = "honest",
    ) -> ScoreReport:
        """Evaluates scores of either kind, in any order; see `roc` for what is refused."""
        rates = RateReport.of_roc(roc(genuine, impostor), far_targets, far_rule)
        return cls(rates.roc, rates.eer, rates.auc, rates.tar_at_far, far_rule, genuine, impostor)


def roc(genuine: np.ndarray, impostor: np.ndarray) -> Roc:
    """ROC curve of the scores [G] of genuine and [I] of impostor pairs; higher is more alike.

    O((G + I) log(G + I)). Equal scores are accepted together, so a tie of both kinds is a slope.

    Raises:
        FacetrainError: no pair of one kind, or a score that is NaN or infinite.
    """
    genuine = np.sort(finite_values(genuine, "genuine scores"))
    impostor = np.sort(finite_values(impostor, "impostor scores"))
    # The curve bends only where a genuine pair is accepted: just above its score, and at it. "Just
    # above" is a step of the scores' own type, or comparing with it would round it back.
    kind = np.result_type(genuine, impostor, np.float32).type
    at = np.unique(genuine)[::-1].astype(kind)
    up = kind(np.inf)
    highest = kind(max(genuine[-1], impostor[-1]))
    lowest = kind(min(genuine[0], impostor[0]))
    thresholds = np.concatenate(
        [
            [np.nextafter(highest, up)],
            np.stack([np.nextafter(at, up), at], axis=1).ravel(),
            [lowest],
        ]
    ).astype(np.float64)
    return Roc(
        thresholds=thresholds,
        far=_share_accepted(impostor, thresholds),
        tar=_share_accepted(genuine, thresholds),
        num_genuine=len(genuine),
        num_impostor=len(impostor),
    )


def _share_accepted(ascending: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    # Counts are divided last: k / n is then the very double that a target such as 1e-3 is.
    rejected = np.searchsorted(ascending.astype(np.float64), thresholds, side="left")
    return (len(ascending) - rejected) / len(ascending)


def tar_at_far(curve: Roc, far_target: float) -> OperatingPoint:
    """The largest TAR whose FAR is at most `far_target`, at the strictest threshold that has it.

    Raises:
        FacetrainError: a target outside (0, 1].
    """
    if not 0.0 < far_target <= 1.0:
        raise FacetrainError(f"far_target {far_target}: must be above 0, at most 1")
    if far_target < 1.0 / curve.num_impostor:
        return OperatingPoint(far_target, None, None, None)
    last = np.searchsorted(curve.far, far_target, side="right") - 1
    first = np.searchsorted(curve.tar, curve.tar[last], side="left")
    return OperatingPoint(
        far_target,
        far=float(curve.far[first]),
        tar=float(curve.tar[first]),
        threshold=float(curve.thresholds[first]),
    )


def tar_at_nearest_far(curve: Roc, far_target: float) -> OperatingPoint:
    """TAR at the corner of the curve whose FAR is nearest to the target, above it or below.

    The rule of a public IJB script: its FAR can be up to twice the target or more, so figures by
    it compare with such figures only. Of corners equally near, the one with the larger TAR.

    Raises:
        FacetrainError: a target outside (0, 1].
    """
    if tar_at_far(curve, far_target).tar is None:  # not measurable by any rule
        return OperatingPoint(far_target, None, None, None)
    away = np.abs(curve.far - far_target)
    nearest = len(away) - 1 - int(np.argmin(away[::-1]))
    return OperatingPoint(
        far_target,
        far=float(curve.far[nearest]),
        tar=float(curve.tar[nearest]),
        threshold=float(curve.thresholds[nearest]),
    )


#: How an operating point is read off the curve, by name.
FAR_RULES: dict[str, Callable[[Roc, float], OperatingPoint]] = {
    "honest": tar_at_far,
    "nearest": tar_at_nearest_far,
}


def far_rule_named(name: str) -> Callable[[Roc, float], OperatingPoint]:
    """The rule of that name.

    Raises:
        FacetrainError: unknown; the message lists the known.
    """
    if name not in FAR_RULES:
        raise FacetrainError(f"far rule {name!r} is unknown; choose one of {', '.join(FAR_RULES)}")
    return FAR_RULES[name]


def eer(curve: Roc) -> float:
    """Equal error rate: FAR where the curve crosses FAR = 1 - TAR."""
    excess = curve.far + curve.tar - 1.0  # ascends from -1 to 1
    right = int(np.argmax(excess >= 0.0))
    left = right - 1
    weight = -excess[left] / (excess[right] - excess[left])
    return float(curve.far[left] + weight * (curve.far[right] - curve.far[left]))


def auc(curve: Roc) -> float:
    """Area under the curve: P(genuine > impostor) + P(genuine = impostor) / 2."""
    return float(np.sum(np.diff(curve.far) * (curve.tar[1:] + curve.tar[:-1]) / 2.0))


def finite_values(values: np.ndarray, what: str) -> np.ndarray:
    """The values as an array [N].

    Raises:
        FacetrainError: there is none, or one is NaN or infinite.
    """
    values = np.asarray(values)
    if values.ndim != 1 or len(values) == 0:
        raise FacetrainError(f"{what}: {list(values.shape)} given, at least one is needed")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise FacetrainError(
            f"{what}: {len(bad)} of {len(values)} are NaN or infinite, the first at position "
            f"{bad[0]}; check the model's embeddings"
        )
    return values
