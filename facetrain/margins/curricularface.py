"""CurricularFace: ArcFace whose hard negatives weigh more as training goes on.

Huang et al., CVPR 2020, section 3.2; m = 0.5. Target: T = cos(theta + m). Another class j is
hard where cos_j > T, and becomes cos_j (t + cos_j), t being a running mean of target cosines that
starts at 0. A step moves t by 0.01 towards its batch's mean, as in the authors' code (the paper
prints alpha = 0.99 as the new value's share), here of the global batch.

Past theta + m = pi T continues as in ArcFace, also where a class is judged hard; the authors' code
continues it in the target logit only.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from facetrain.margins.angles import add_angle
from facetrain.margins.margin import Margin, Ranges, Targets, move_towards


class CurricularFace(Margin):
    """ArcFace's target; cosines of hard other classes are changed too.

    Args:
        value: m, an angle in radians.
        t_alpha: share of a step's mean target cosine in t.
    """

    ranges: ClassVar[Ranges] = {"value": (0.0, math.pi / 2), "t_alpha": (0.0, 1.0)}
    shapes_others = True
    t: Tensor

    def __init__(self, value: float = 0.5, t_alpha: float = 0.01) -> None:
        super().__init__()
        self.value = value
        self.t_alpha = t_alpha
        self.register_buffer("t", torch.zeros(()))

    @property
    def bound(self) -> float:
        """1 + |t|, at most 2: c (t + c) is convex, so largest at c = 1 or -1.

        Following t instead of saying 2 keeps exponentials of early steps, t near 0, from
        underflowing. Reads t from its device.
        """
        return 1.0 + abs(float(self.t))

    @property
    def curriculum(self) -> Tensor:
        return self.t

    def forward(self, targets: Targets) -> Tensor:
        return add_angle(targets.cosines, self.value)

    def observe(self, norms_n: Tensor | None, target_cosines_n: Tensor | None) -> None:
        assert target_cosines_n is not None
        move_towards(self.t, target_cosines_n.clamp(-1.0, 1.0).mean(), self.t_alpha)

    @torch.no_grad()
    def shape_others(self, cosines_kn: Tensor, margin_cosines_n: Tensor) -> Tensor:
        hard = cosines_kn > margin_cosines_n
        slopes = torch.where(hard, 2.0 * cosines_kn + self.t, 1.0)
        cosines_kn.mul_(torch.where(hard, cosines_kn + self.t, 1.0))
        return slopes
