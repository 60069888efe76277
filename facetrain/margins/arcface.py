"""ArcFace: cos(theta + m). Deng et al., CVPR 2019, equation 3; m = 0.5 there.

cos(theta + m) rises again once theta + m passes pi, which would reward the worst rows. There the
authors' code goes on with cos(theta) - m sin(m), which keeps falling, and so do we.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

# At |cos| = 1 the slope of the sine is infinite; the nearest fp32 cosine keeps it below 3e3.
_LARGEST_COSINE = 1.0 - 1e-7


@dataclass(frozen=True)
class ArcFace:
    """Adds a constant to the target angle.

    Args:
        value: m, an angle in radians, in [0, pi / 2].
    """

    value_range: ClassVar[tuple[float, float]] = (0.0, math.pi / 2)

    value: float = 0.5

    @property
    def bound(self) -> float:
        return 1.0

    def __call__(self, target_cosine: Tensor) -> Tensor:
        margin_rad = self.value
        cosine = target_cosine.clamp(-_LARGEST_COSINE, _LARGEST_COSINE)
        sine = torch.sqrt(1.0 - cosine * cosine)
        rotated = cosine * math.cos(margin_rad) - sine * math.sin(margin_rad)
        beyond = target_cosine - margin_rad * math.sin(margin_rad)
        return torch.where(target_cosine > math.cos(math.pi - margin_rad), rotated, beyond)
