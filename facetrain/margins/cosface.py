"""CosFace: cos(theta) - m. Wang et al., CVPR 2018, equation 4; m = 0.35 there."""

from __future__ import annotations

from torch import Tensor

from facetrain.margins.margin import Margin, Targets


class CosFace(Margin):
    """Subtracts a constant from the target cosine.

    Args:
        value: m, as a cosine difference, in [0, 1].
    """

    ranges = {"value": (0.0, 1.0)}

    def __init__(self, value: float = 0.35) -> None:
        super().__init__()
        self.value = value

    def forward(self, targets: Targets) -> Tensor:
        return targets.cosines - self.value

    def extra_repr(self) -> str:
        return f"{self.value:g}"
