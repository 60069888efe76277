"""Combined margin: cos(m1 theta + m2) - m3. Deng et al., CVPR 2019, equation 4.

Defaults are the authors' `combined` configuration, (1, 0.3, 0.2), the paper's CM1; its CM2 is
(0.9, 0.4, 0.15). All three act together here; arcface_torch drops m1 and m2 as soon as m3 > 0.
Past m1 theta + m2 = pi, which neither paper nor code treats, SphereFace's continuation takes over:
(-1)^k cos - 2k, without a jump and never rising.
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from facetrain.margins.angles import angle, falling_cosine
from facetrain.margins.margin import Margin, Ranges, Targets


class CombinedMargin(Margin):
    """SphereFace's factor, ArcFace's angle and CosFace's difference at once.

    Args:
        m1: factor of the target angle.
        m2: added to the angle, in radians.
        m3: subtracted from the cosine.
    """

    ranges: ClassVar[Ranges] = {"m1": (0.5, 8.0), "m2": (0.0, math.pi / 2), "m3": (0.0, 1.0)}

    def __init__(self, m1: float = 1.0, m2: float = 0.3, m3: float = 0.2) -> None:
        super().__init__()
        self.m1 = m1
        self.m2 = m2
        self.m3 = m3

    def forward(self, targets: Targets) -> Tensor:
        return falling_cosine(self.m1 * angle(targets.cosines) + self.m2) - self.m3
