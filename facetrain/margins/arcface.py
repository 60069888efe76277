"""ArcFace: cos(theta + m). Deng et al., CVPR 2019, equation 3; m = 0.5 there.

cos(theta + m) rises again once theta + m passes pi, which would reward the worst rows. There the
authors' code goes on with cos(theta) - m sin(m), which keeps falling, and so do we.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from facetrain.margins.margin import Margin, Targets

# At |cos| = 1 the slope of the sine is infinite; the nearest fp32 cosine keeps it below 3e3.
_LARGEST_COSINE = 1.0 - 1e-7


class ArcFace(Margin):
    """Adds a constant to the target angle.

    Args:
        value: m, an angle in radians, in [0, pi / 2].
    """

    ranges = {"value": (0.0, math.pi / 2)}

    def __init__(self, value: float = 0.5) -> None:
        super().__init__()
        self.value = value

    def forward(self, targets: Targets) -> Tensor:
        return add_angle(targets.cosines, self.value)

    def extra_repr(self) -> str:
        return f"{self.value:g}"


def add_angle(cosines: Tensor, margin_rad: float | Tensor) -> Tensor:
    """cos(theta + m), continued past theta + m = pi by cos(theta) - m sin(m).

    Args:
        cosines: of theta, [M].
        margin_rad: m, one for all or one each, [M].
    """
    margin_rad = torch.as_tensor(margin_rad, dtype=cosines.dtype, device=cosines.device)
    cosine = cosines.clamp(-_LARGEST_COSINE, _LARGEST_COSINE)
    sine = torch.sqrt(1.0 - cosine * cosine)
    rotated = cosine * margin_rad.cos() - sine * margin_rad.sin()
    beyond = cosines - margin_rad * margin_rad.sin()
    return torch.where(cosines > (math.pi - margin_rad).cos(), rotated, beyond)
