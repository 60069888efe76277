"""Error rates of a face verifier from its scores; NumPy only.

A pair is accepted where score >= threshold. TAR is the share of genuine pairs (one identity) that
are accepted, FAR that of impostor pairs. TAR@FAR=x is the largest TAR of any threshold whose FAR is
at most x; it cannot be measured when x is below one pair in the impostors there are. The k-fold
accuracy is that of Huang et al., "Labeled Faces in the Wild", 2007.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError

FAR_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
#: Candidate thresholds on the squared L2 distance of unit vectors, as in the public protocol.
FOLD_THRESHOLDS = np.arange(0.0, 4.0, 0.01)


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
class FoldAccuracy:
    """Accuracy of every fold, each at the threshold that is best on all the others.

    Attributes:
        accuracies: one per fold.
        thresholds: the squared L2 distance below which a pair was accepted, one per fold.
        best_threshold: the best on all pairs together.
    """

    accuracies: np.ndarray
    thresholds: np.ndarray
    best_threshold: float

    @property
    def mean(self) -> float:
        return float(self.accuracies.mean())

    @property
    def std(self) -> float:
        """Standard deviation over the folds (of the population, as the protocol's code has it)."""
        return float(self.accuracies.std())


@dataclass(frozen=True, eq=False)
class ScoreReport:
    """Everything that follows from the scores of genuine and impostor pairs.

    Attributes:
        genuine: scores of genuine pairs.
        impostor: scores of impostor pairs.
        roc: the curve.
        eer: equal error rate, where FAR = 1 - TAR.
        auc: area under the curve.
        tar_at_far: one operating point per target FAR.
    """

    genuine: np.ndarray
    impostor: np.ndarray
    roc: Roc
    eer: float
    auc: float
    tar_at_far: tuple[OperatingPoint, ...]

    @classmethod
    def of(
        cls,
        genuine: np.ndarray,
        impostor: np.ndarray,
        far_targets: Sequence[float] = FAR_TARGETS,
    ) -> ScoreReport:
        """Evaluates scores of either kind, in any order; see `roc` for what is refused."""
        curve = roc(genuine, impostor)
        points = tuple(tar_at_far(curve, target) for target in far_targets)
        return cls(genuine, impostor, curve, eer(curve), auc(curve), points)

    def to_dict(self) -> dict[str, Any]:
        """The figures, without the scores, for a JSON file."""
        return {
            "num_genuine": self.roc.num_genuine,
            "num_impostor": self.roc.num_impostor,
            "eer": self.eer,
            "auc": self.auc,
            "tar_at_far": [asdict(point) for point in self.tar_at_far],
        }


def roc(genuine: np.ndarray, impostor: np.ndarray) -> Roc:
    """ROC curve of the scores [G] of genuine and [I] of impostor pairs; higher is more alike.

    O((G + I) log(G + I)). Equal scores are accepted together, so a tie of both kinds is a slope.

    Raises:
        FacetrainError: no pair of one kind, or a score that is NaN or infinite.
    """
    genuine = np.sort(_finite(genuine, "genuine scores"))
    impostor = np.sort(_finite(impostor, "impostor scores"))
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


def contiguous_folds(num_pairs: int, num_folds: int) -> np.ndarray:
    """Fold of each pair, int64 [P], when folds follow one another in file order."""
    _check_folds(num_pairs, num_folds)
    parts = np.array_split(np.arange(num_pairs), num_folds)
    return np.repeat(np.arange(num_folds), [len(part) for part in parts])


def dealt_folds(is_same: np.ndarray, num_folds: int) -> np.ndarray:
    """Fold of each pair, int64 [P], when each kind of pair is dealt out to the folds in turn."""
    _check_folds(len(is_same), num_folds)
    folds = np.empty(len(is_same), dtype=np.int64)
    for kind in (False, True):
        chosen = np.flatnonzero(is_same == kind)
        folds[chosen] = np.arange(len(chosen)) % num_folds
    return folds


def _check_folds(num_pairs: int, num_folds: int) -> None:
    if not 2 <= num_folds <= num_pairs:
        raise FacetrainError(
            f"num_folds {num_folds}: must be 2 to {num_pairs}, the pairs there are"
        )


def kfold_accuracy(
    distances: np.ndarray,
    is_same: np.ndarray,
    folds: np.ndarray,
    thresholds: np.ndarray = FOLD_THRESHOLDS,
) -> FoldAccuracy:
    """Accuracy of each fold at the threshold that is best on the other folds.

    Of thresholds that tie, the middle one: the farthest from where errors begin on either side.
    The public script takes the lowest; on LFW the choice moves a figure by 0.05 % at most.

    Args:
        distances: squared L2 distances of unit embeddings [P]; accepted where below the threshold.
        is_same: bool [P].
        folds: fold of each pair, [P], numbered from 0.
        thresholds: ascending candidates [T].

    Raises:
        FacetrainError: a distance that is NaN or infinite, or lengths that differ.
    """
    distances = _finite(distances, "pair distances")
    if not len(distances) == len(is_same) == len(folds):
        raise FacetrainError(
            f"{len(distances)} pair distances, {len(is_same)} kinds and {len(folds)} folds: "
            "must be as many of each"
        )
    is_same = np.asarray(is_same, dtype=bool)
    num_folds = int(folds.max()) + 1
    # A pair is accepted from threshold number `first` on; counting these is a sum from the left.
    first = np.searchsorted(thresholds, distances, side="right")
    accepted = np.zeros((2, num_folds, len(thresholds) + 1), dtype=np.int64)
    np.add.at(accepted, (is_same.astype(np.int64), folds, first), 1)
    accepted = accepted[:, :, :-1].cumsum(axis=2)
    num_different = np.bincount(folds[~is_same], minlength=num_folds)
    correct = accepted[1] + num_different[:, None] - accepted[0]  # [fold, threshold]
    best = np.array([_middle_of_best(others) for others in correct.sum(axis=0) - correct])
    sizes = np.bincount(folds, minlength=num_folds)
    return FoldAccuracy(
        accuracies=correct[np.arange(num_folds), best] / sizes,
        thresholds=thresholds[best],
        best_threshold=float(thresholds[_middle_of_best(correct.sum(axis=0))]),
    )


def _middle_of_best(correct: np.ndarray) -> int:
    """Of the thresholds with the most correct pairs, the middle one (of two, the upper)."""
    best = np.flatnonzero(correct == correct.max())
    return int(best[len(best) // 2])


def _finite(values: np.ndarray, what: str) -> np.ndarray:
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
