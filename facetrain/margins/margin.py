"""What a margin is: the change made to cosines before the softmax.

    target cosine  ->  margin.forward            other classes' cosines  ->  margin.shape_others

Most margins change the target's cosine only. The head multiplies by the scale afterwards, knows
which rows' class centers this rank holds, and takes care of gradients, ranks and sampling.

Shapes: N rows of the global batch, M of them with their class center on this rank, K classes of
this rank or a part of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""Options of a margin with the smallest and largest value allowed, the main one first."""


@dataclass(frozen=True)
class Targets:
    """Rows whose class center is at hand.

    Attributes:
        cosines: between embedding and own class center, fp32 [M].
        rows: their numbers in the global batch, int64 [M].
        norms: lengths of their embeddings, fp32 [M]; None unless the margin `uses_norms`.
    """

    cosines: Tensor
    rows: Tensor
    norms: Tensor | None = None


class Margin(nn.Module, ABC):
    """A margin; one file each. Buffers are running statistics, equal on every rank.

    A constructor's arguments are floats with the paper's values as defaults, kept as attributes of
    the same names; `ranges` names each with the smallest and largest allowed.
    """

    ranges: ClassVar[Ranges] = {}
    uses_norms: ClassVar[bool] = False
    """Needs lengths of embeddings, which may get a gradient; N more floats are sent each way."""
    shapes_others: ClassVar[bool] = False
    """Changes other classes' cosines too, for which every rank is sent all N target cosines."""

    @property
    def bound(self) -> float:
        """No cosine, of a target or of another class, is larger after the margin."""
        return 1.0

    @property
    def curriculum(self) -> Tensor | None:
        """t, where `shape_others` is CurricularFace's c -> c (t + c), which kernels know."""
        return None

    @abstractmethod
    def forward(self, targets: Targets) -> Tensor:
        """Margin cosines, fp32 [M]; differentiable in the cosines on [-1, 1].

        Differentiable in the norms too, where the paper's loss is.
        """

    def initialise(self, num_classes: int, sample_rate: float) -> None:
        """Called once by the head: C classes over all ranks, and the share of them in use."""

    def observe(self, norms_n: Tensor | None, target_cosines_n: Tensor | None) -> None:
        """Update running statistics before a training step's loss; the same call on every rank.

        Args:
            norms_n: lengths of all embeddings of the global batch where the margin `uses_norms`.
            target_cosines_n: plain cosines of all targets where the margin `shapes_others`.
        """

    def draw(self, num_rows: int) -> None:
        """Draw what is random in the margins of the next N rows; the same call on every rank."""

    def shape_others(self, cosines_kn: Tensor, margin_cosines_n: Tensor) -> Tensor:
        """Change cosines of other classes in place; their slopes, [K, N].

        Entries of the target classes are among them and are overwritten by the head afterwards.

        Args:
            margin_cosines_n: what `forward` gives for each row's target.
        """
        raise NotImplementedError(f"{type(self).__name__} leaves other classes alone")

    def unified(self) -> tuple[Tensor, float] | None:
        """The learned threshold b, a parameter of one element, and the weight l of other classes,
        where the loss is the unified cross-entropy (UniFace). None: it is the softmax."""
        return None

    def penalty(self, norms: Tensor) -> Tensor | None:
        """Added to each row's loss, of the same shape; differentiable. None: nothing is."""
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{option}={getattr(self, option):g}" for option in self.ranges)


@torch.no_grad()
def move_towards(statistic: Tensor, value: Tensor, share: float) -> None:
    """Running mean, in place: `share` of the value. A NaN, of a batch gone wrong, moves nothing."""
    statistic.lerp_(torch.where(value.isnan(), statistic, value), share)
