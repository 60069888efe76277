"""The loss of a row from the cosines of all classes, in the parts that cut classes allow.

A row's loss is made of one term per class. Each rank adds up the terms of its classes (`terms_`),
ranks are summed, and `finish` makes losses and the factors that turn terms' derivatives into the
loss's. Derivatives are by the cosine, up to a factor per row:

    softmax    loss = log sum_k exp(s c_k) - s c_y       d/dc_k = s (p_k - [k = y])
    unified    loss = l sum_{k != y} softplus(s c_k - b) + softplus(b - s c_y)
               d/dc_k = s l sigmoid(s c_k - b)           d/dc_y = -s sigmoid(b - s c_y)

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
        bias: derivative of each row's loss by the margin's bias, [n]; None without one.
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

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor) -> Tensor:
        """Terms of classes other than the targets (-inf there), summed: [2, n].

        In place the cosines become the terms' derivatives, over the row's factor.
        """

    def target_terms(self, margin_cosines_m: Tensor, shift: float | Tensor) -> Tensor:
        """What a row's target adds to its two sums, [2, m]; `shift` one for all or [m]."""

    def lost_digits(self, totals: Tensor) -> bool:
        """Whether sums over all ranks are to be made again, shifted by the rows' maxima."""

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, target_terms_m: Tensor
    ) -> RowResults:
        """Results from sums over all ranks [2, n].

        Args:
            rows_m: rows of the chunk with their target on this rank, int64 [m].
            target_terms_m: what `target_terms` gave for them, [2, m].
        """


class Softmax:
    """Softmax cross-entropy of s times the cosines.

    No maximum is exchanged: no cosine is above the margin's bound, so exp(s (cosine - bound))
    cannot overflow. Where a row's sum underflows instead (few classes, all far away) the sums are
    made again with the true maxima.
    """

    def __init__(self, scale: float, bound: float) -> None:
        self.shift = scale * bound
        self._scale = scale

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor) -> Tensor:
        exponentials = cosines_kn.mul_(self._scale).sub_(shift).exp_()
        sums = exponentials.new_zeros((2, exponentials.shape[1]))
        torch.sum(exponentials, 0, out=sums[0])
        return sums

    def target_terms(self, margin_cosines_m: Tensor, shift: float | Tensor) -> Tensor:
        logits = self._scale * margin_cosines_m
        return torch.stack([(logits - shift).exp(), logits])

    def lost_digits(self, totals: Tensor) -> bool:
        return bool((totals[0] < _SMALLEST_SUM).any())

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, target_terms_m: Tensor
    ) -> RowResults:
        sums, target_logits = totals
        return RowResults(
            losses=sums.log() + shift - target_logits,
            factors=self._scale / sums,
            target_derivatives=target_terms_m[0] - sums[rows_m],
        )


class UnifiedCrossEntropy:
    """UniFace: every class against one learned threshold b. Zhou et al., ICCV 2023.

    Args:
        bias: b, a tensor of one element.
        others_weight: l, of the terms of other classes.
    """

    shift = 0.0

    def __init__(self, scale: float, bias: Tensor, others_weight: float) -> None:
        self._scale = scale
        self._bias = bias.detach()
        self._others_weight = others_weight

    def terms_(self, cosines_kn: Tensor, shift: float | Tensor) -> Tensor:
        logits = cosines_kn.mul_(self._scale).sub_(self._bias)
        losses = functional.softplus(logits).sum(0).mul_(self._others_weight)
        return torch.stack([losses, logits.sigmoid_().mul_(self._others_weight).sum(0)])

    def target_terms(self, margin_cosines_m: Tensor, shift: float | Tensor) -> Tensor:
        missing = self._bias - self._scale * margin_cosines_m
        return torch.stack([functional.softplus(missing), -missing.sigmoid()])

    def lost_digits(self, totals: Tensor) -> bool:
        return False

    def finish(
        self, totals: Tensor, shift: float | Tensor, rows_m: Tensor, target_terms_m: Tensor
    ) -> RowResults:
        losses, slopes = totals
        return RowResults(
            losses=losses,
            factors=torch.full_like(losses, self._scale),
            target_derivatives=target_terms_m[1],
            bias=-slopes,
        )


def row_loss_for(margin: Margin, scale: float) -> RowLoss:
    """The loss that the margin belongs to."""
    if margin.unified:
        bias, others_weight = margin.bias, margin.others_weight
        assert isinstance(bias, Tensor)
        assert isinstance(others_weight, float)
        return UnifiedCrossEntropy(scale, bias, others_weight)
    return Softmax(scale, margin.bound)
