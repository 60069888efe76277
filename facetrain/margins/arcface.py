"""ArcFace: cos(theta + m). Deng et al., CVPR 2019, equation 3; m = 0.5 there.

cos(theta + m) rises again once theta + m passes pi, which would reward the worst rows. There the
authors' first code goes on with cos(theta) - m sin(m), which keeps falling, and so do we; their
later code (arcface_torch) lets it rise.
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from facetrain.margins.angles import add_angle
from facetrain.margins.margin import Margin, Ranges, Targets


class ArcFace(Margin):
    """Adds a constant to the target angle.

    Args:
        value: m, an angle in radians.
    """

    ranges: ClassVar[Ranges] = {"value": (0.0, math.pi / 2)}

    def __init__(self, value: float = 0.5) -> None:
        super().__init__()
        self.value = value

    def forward(self, targets: Targets) -> Tensor:
        return add_angle(targets.cosines, self.value)
