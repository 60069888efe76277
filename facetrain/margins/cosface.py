"""CosFace: cos(theta) - m. Wang et al., CVPR 2018, equation 4; m = 0.35 there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class CosFace:
    """Subtracts a constant from the target cosine.

    Args:
        value: m, as a cosine difference, in [0, 1].
    """

    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    value: float = 0.35

    @property
    def bound(self) -> float:
        return 1.0

    def __call__(self, target_cosine: Tensor) -> Tensor:
        return target_cosine - self.value
