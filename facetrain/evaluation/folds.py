"""K-fold accuracy of a verifier: each fold at the threshold that is best on the others.

Huang et al., "Labeled Faces in the Wild", 2007; thresholds on the squared L2 distance of unit
embeddings, 0 to 4 in steps of 0.01, as in the public protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import finite_values

#: Candidate thresholds on the squared L2 distance of unit vectors, as in the public protocol.
FOLD_THRESHOLDS = np.arange(0.0, 4.0, 0.01)


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
    weights: np.ndarray | None = None,
) -> FoldAccuracy:
    """Accuracy of each fold at the threshold that is best on the other folds.

    Of thresholds that tie, the middle one: the farthest from where errors begin on either side.
    The public script takes the lowest; on LFW the choice moves a figure by 0.05 % at most.

    Args:
        distances: squared L2 distances of unit embeddings [P]; accepted where below the threshold.
        is_same: bool [P].
        folds: fold of each pair, [P], numbered from 0.
        thresholds: ascending candidates [T].
        weights: how often each pair counts, [P]; a fold whose pairs do not count is left out.

    Raises:
        FacetrainError: a distance that is NaN or infinite, or lengths that differ.
    """
    distances = finite_values(distances, "pair distances")
    if not len(distances) == len(is_same) == len(folds):
        raise FacetrainError(
            f"{len(distances)} pair distances, {len(is_same)} kinds and {len(folds)} folds: "
            "must be as many of each"
        )
    is_same = np.asarray(is_same, dtype=bool)
    weights = np.ones(len(folds)) if weights is None else weights
    num_folds = int(folds.max()) + 1
    # A pair is accepted from threshold number `first` on; counting these is a sum from the left.
    first = np.searchsorted(thresholds, distances, side="right")
    shape = (2, num_folds, len(thresholds) + 1)
    cells = np.ravel_multi_index((is_same.astype(np.int64), folds, first), shape)
    counts = np.bincount(cells, weights, minlength=2 * num_folds * shape[2]).reshape(shape)
    accepted = counts[:, :, :-1].cumsum(axis=2)
    num_different, num_same = counts.sum(axis=2)
    correct = accepted[1] + num_different[:, None] - accepted[0]  # [fold, threshold]
    best = np.array([_middle_of_best(others) for others in correct.sum(axis=0) - correct])
    sizes = num_different + num_same
    counted = np.flatnonzero(sizes)
    return FoldAccuracy(
        accuracies=correct[counted, best[counted]] / sizes[counted],
        thresholds=thresholds[best],
        best_threshold=float(thresholds[_middle_of_best(correct.sum(axis=0))]),
    )


def _middle_of_best(correct: np.ndarray) -> int:
    """Of the thresholds with the most correct pairs, the middle one (of two, the upper)."""
    best = np.flatnonzero(correct == correct.max())
    return int(best[len(best) // 2])
