"""The loss of a row from the cosines of all classes, in the parts that cut classes allow.

Each rank adds up a term for each of its classes but the row's target (`terms_`), which the rank
that has it adds apart (`target_terms`). Ranks are summed, and `finish` makes losses and the factors
that turn terms' derivatives into the loss's. With others_n the sum over other classes:

    softmax    loss = log(1 + others / exp(s c_y)), others = sum_{k != y} exp(s c_k)
               d/dc_k = s exp(s c_k) / sum              d/dc_y = -s others / sum
    unified    loss = l sum_{k != y} softplus(s c_k - b) + softplus(b - s c_y)
               d/dc_k = s l sigmoid(s c_k - b)           d/dc_y = -s sigmoid(b - s c_y)

The target apart from the others keeps digits where a row is learnt: p_y - 1 would lose them.

Shapes: K classes of a tile, n rows of a chunk, m of them with their target on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as functional
from torch import Tensor

from facetrain.margins import Margin

# Below this the largest terms of a row's fp32 sum are near the denormals and lose digits.
_SMALLEST_SUM = 1e-30


@dataclass(frozen=True)
class RowResults:
    """Of one chunk of rows, all but `target_derivatives` equal on every rank.

    Attributes:
        losses: [n].
        factors: what derivatives left by `terms_` are to be multiplied with, [n].
        target_derivatives: by the margin cosine of the target, over `factors`, [m].
        bias: derivative of each row's loss by the margin's threshold, [n]; None without one.
    """

    losses: Tensor
    factors: Tensor
    target_derivatives: Tensor
    bias: Tensor | None = None


class RowLoss(Protocol):
    """How cosines become a loss.

    A shift is subtracted from logits before the exponential: one for all rows or one each, [n].
    """

    shift: float
    """What no logit is above."""
    steepest: float
    """Largest derivative of a term of another class by its cosine, over s."""

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor, totals: Tensor | None) -> None:
        """Turn cosines, -inf at the targets, into derivatives of terms over the row's factor.

        In place; the terms are added to `totals`, [2, n], if given.
        """

    def target_terms(self, margin_cosines_m: Tensor) -> Tensor:
        """What a row's target adds to its two totals, [2, m]."""

    def lost_digits(self, totals: Tensor, shift: float | Tensor) -> bool:
        """Whether totals over all ranks are to be made again, shifted by the rows' maxima."""

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, margin_cosines_m: Tensor
    ) -> RowResults:
        """Results from totals over all ranks [2, n]; `rows_m` have their target on this rank."""


class Softmax:
    """Softmax cross-entropy of s times the cosines.

    No maximum is exchanged: no cosine is above the margin's bound, so exp(s (cosine - bound))
    cannot overflow. Where a row's sum underflows instead (few classes, all far away) the sums are
    made again with the true maxima.
    """

    steepest = 1.0

    def __init__(self, scale: float, bound: float) -> None:
        self.shift = scale * bound
        self._scale = scale

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor, totals: Tensor | None) -> None:
        exponentials = cosines_kn.mul_(self._scale).sub_(shift).exp_()
        if totals is not None:
            totals[0] += exponentials.sum(0)

    def target_terms(self, margin_cosines_m: Tensor) -> Tensor:
        logits = self._scale * margin_cosines_m
        return torch.stack([torch.zeros_like(logits), logits])

    def lost_digits(self, totals: Tensor, shift: float | Tensor) -> bool:
        others, target_logits = totals
        return bool((others + (target_logits - shift).exp() < _SMALLEST_SUM).any())

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, margin_cosines_m: Tensor
    ) -> RowResults:
        others, target_logits = totals
        return RowResults(
            losses=functional.softplus(others.log() + shift - target_logits),
            factors=self._scale / (others + (target_logits - shift).exp()),
            target_derivatives=-others[rows_m],
        )


class UnifiedCrossEntropy:
    """UniFace: every class against one learned threshold b. Zhou et al., ICCV 2023.

    Args:
        threshold: b, a tensor of one element.
        others_weight: l, of the terms of other classes.
    """

    shift = 0.0

    def __init__(self, scale: float, threshold: Tensor, others_weight: float) -> None:
        self.steepest = others_weight
        self._scale = scale
        self._threshold = threshold.detach().clone()
        self._others_weight = others_weight

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor, totals: Tensor | None) -> None:
        logits = cosines_kn.mul_(self._scale).sub_(self._threshold)
        if totals is not None:
            totals[0] += functional.softplus(logits).sum(0).mul_(self._others_weight)
        slopes = logits.sigmoid_().mul_(self._others_weight)
        if totals is not None:
            totals[1] += slopes.sum(0)

    def target_terms(self, margin_cosines_m: Tensor) -> Tensor:
        missing = self._threshold - self._scale * margin_cosines_m
        return torch.stack([functional.softplus(missing), -missing.sigmoid()])

    def lost_digits(self, totals: Tensor, shift: float | Tensor) -> bool:
        return False

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, margin_cosines_m: Tensor
    ) -> RowResults:
        losses, slopes = totals
        return RowResults(
            losses=losses,
            factors=torch.full_like(losses, self._scale),
            target_derivatives=self.target_terms(margin_cosines_m)[1],
            bias=-slopes,
        )


def row_loss_for(margin: Margin, scale: float) -> RowLoss:
    """The loss that the margin belongs to."""
    unified = margin.unified()
    return Softmax(scale, margin.bound) if unified is None else UnifiedCrossEntropy(scale, *unified)
