"""1:1 verification on listed pairs: the protocol of LFW, CFP-FP and AgeDB-30.

Unit embeddings, squared L2 distance d = 2 - 2 cos; the accuracy is the mean over the folds, each at
the threshold that is best on the others. Huang et al., "Labeled Faces in the Wild", 2007.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.folds import (
    FOLD_THRESHOLDS,
    FoldAccuracy,
    contiguous_folds,
    dealt_folds,
    kfold_accuracy,
)
from facetrain.evaluation.metrics import FAR_TARGETS, ScoreReport

_PAIRS_PER_BLOCK = 8192
#: Below this squared L2 distance the protocol's steps of 0.01 are too coarse: a network that has
#: hardly trained has all its embeddings in a few of them.
_CROWDED = 0.25


@dataclass(frozen=True, eq=False)
class VerificationResult:
    """Outcome of a verification.

    Attributes:
        folds: accuracy and threshold of each fold; thresholds are squared L2 distances.
        fold_rule: how pairs came to their folds.
        scores: cosines of the pairs, and the rates that follow from them.
        distances: squared L2 distance of each pair, float64 [P].
        is_same: bool [P].
        fold_of_pair: int64 [P].
        thresholds: candidates that each fold's threshold was chosen from.
    """

    folds: FoldAccuracy
    fold_rule: str
    scores: ScoreReport
    distances: np.ndarray
    is_same: np.ndarray
    fold_of_pair: np.ndarray
    thresholds: np.ndarray

    @property
    def cosines(self) -> np.ndarray:
        """Cosine of each pair, float64 [P]."""
        return 1.0 - self.distances / 2.0

    @property
    def accuracy(self) -> float:
        """Mean over the folds."""
        return self.folds.mean

    @property
    def accuracy_std(self) -> float:
        return self.folds.std

    @property
    def threshold_squared_l2(self) -> float:
        """Accept below this squared L2 distance of unit embeddings: best on all pairs."""
        return self.folds.best_threshold

    @property
    def threshold_cosine(self) -> float:
        """The same threshold as a cosine: accept above it."""
        return 1.0 - self.folds.best_threshold / 2.0

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {
            "accuracy": self.accuracy,
            "accuracy_std": self.accuracy_std,
            "fold_accuracies": self.folds.accuracies.tolist(),
            "fold_thresholds_squared_l2": self.folds.thresholds.tolist(),
            "fold_rule": self.fold_rule,
            "threshold_squared_l2": self.threshold_squared_l2,
            "threshold_cosine": self.threshold_cosine,
            **self.scores.to_dict(),
        }


def check_both_kinds(is_same: np.ndarray, name: str = "pairs") -> None:
    """Refuses pairs, bool [P], of which all are genuine or all impostor.

    Raises:
        FacetrainError: they are; the message begins with `name`.
    """
    if is_same.all() or not is_same.any():
        kind = "one identity" if is_same.all() else "two identities"
        raise FacetrainError(f"{name}: all {len(is_same)} are of {kind}; both kinds are needed")


def verify(
    embeddings: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    is_same: np.ndarray,
    num_folds: int = 10,
    far_targets: Sequence[float] = FAR_TARGETS,
    far_rule: str = "honest",
) -> VerificationResult:
    """Evaluates the pairs (left[i], right[i]), rows of `embeddings`.

    Folds follow one another in file order, as the protocol says. A list that is not in folds (all
    genuine pairs first, as in LFW's view 1) would test each threshold on pairs of one kind and
    choose it on a skewed mixture, so there each kind is dealt to the folds in turn; `fold_rule` of
    the result tells which.

    Args:
        embeddings: [M, D], of any length but zero.
        left: rows [P].
        right: rows [P].
        is_same: bool [P], whether both are of one identity.
        num_folds: at least 2.
        far_targets: FARs to report TAR at.
        far_rule: how, see `FAR_RULES`.

    Raises:
        FacetrainError: unusable embeddings, rows out of range, only one kind of pair, or folds that
            cannot be formed.
    """
    left, right = np.asarray(left), np.asarray(right)
    is_same = np.asarray(is_same, dtype=bool)
    if not left.shape == right.shape == is_same.shape or left.ndim != 1 or len(left) == 0:
        raise FacetrainError(
            f"pairs: {list(left.shape)} left, {list(right.shape)} right, {list(is_same.shape)} "
            "kinds; expected one of each per pair"
        )
    unit = unit_embeddings(embeddings)
    if min(left.min(), right.min()) < 0 or max(left.max(), right.max()) >= len(unit):
        raise FacetrainError(f"pairs name rows outside the {len(unit)} embeddings")
    check_both_kinds(is_same)

    distances = squared_distances(unit, left, right)
    folds = contiguous_folds(len(left), num_folds)
    fold_rule = "in file order"
    same_per_fold = np.bincount(folds[is_same], minlength=num_folds)
    if (same_per_fold == 0).any() or (same_per_fold == np.bincount(folds)).any():
        folds = dealt_folds(is_same, num_folds)
        fold_rule = "each kind of pair dealt in turn, since the list is not in folds"
    thresholds = FOLD_THRESHOLDS
    if distances.max() < _CROWDED:
        thresholds = np.linspace(0.0, np.nextafter(distances.max(), np.inf), len(FOLD_THRESHOLDS))
        fold_rule += f"; thresholds up to {distances.max():.2g}, since embeddings are that close"
    cosines = 1.0 - distances / 2.0
    return VerificationResult(
        folds=kfold_accuracy(distances, is_same, folds, thresholds),
        fold_rule=fold_rule,
        scores=ScoreReport.of(cosines[is_same], cosines[~is_same], far_targets, far_rule),
        distances=distances,
        is_same=is_same,
        fold_of_pair=folds,
        thresholds=thresholds,
    )


def squared_distances(unit: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Squared L2 distances float64 [P] of rows of unit embeddings [M, D], block by block."""
    distances = np.empty(len(left), dtype=np.float64)
    for start in range(0, len(left), _PAIRS_PER_BLOCK):
        block = slice(start, start + _PAIRS_PER_BLOCK)
        difference = unit[left[block]].astype(np.float64) - unit[right[block]]
        distances[block] = np.einsum("pd,pd->p", difference, difference)
    return distances
