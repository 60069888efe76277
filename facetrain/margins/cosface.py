"""CosFace: cos(theta) - m. Wang et al., CVPR 2018, equation 4; m = 0.35 there.

arcface_torch uses m = 0.4.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from facetrain.margins.margin import Margin, Ranges, Targets


class CosFace(Margin):
    """Subtracts a constant from the target cosine.

    Args:
        value: m, as a cosine difference.
    """

    ranges: ClassVar[Ranges] = {"value": (0.0, 1.0)}

    def __init__(self, value: float = 0.35) -> None:
        super().__init__()
        self.value = value

    def forward(self, targets: Targets) -> Tensor:
        return targets.cosines - self.value
