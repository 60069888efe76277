"""SphereFace: psi(theta) = (-1)^k cos(m theta) - 2k, k = floor(m theta / pi).

Liu et al., CVPR 2017, equation 7; m = 4. The paper's code mixes it with the plain cosine,

    (lambda cos(theta) + psi(theta)) / (1 + lambda),
    lambda = max(lambda_min, lambda_base (1 + lambda_gamma i)^-lambda_power), i = 1, 2, ...

with 1000, 0.12, 1 and lambda_min 5 (its training prototxt), and so do we. lambda_base = lambda_min
= 0 is psi alone. The paper scales by the embedding's length; here, as its authors do in SphereFace
Revived (SphereFace-R, 2021), by the head's fixed scale. Their code of that paper takes m = 1.7
without annealing, s = 30, and passes gradients straight past the margin.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from facetrain.margins.angles import angle, falling_cosine
from facetrain.margins.margin import Margin, Ranges, Targets


class SphereFace(Margin):
    """Multiplies the target angle; annealed from the plain cosine.

    Args:
        value: m, whole or not.
        lambda_base: lambda before the first iteration.
        lambda_gamma: how fast lambda falls.
        lambda_power: the power of iterations it falls with.
        lambda_min: where it stays.
    """

    ranges: ClassVar[Ranges] = {
        "value": (1.0, 8.0),
        "lambda_base": (0.0, 1e6),
        "lambda_gamma": (0.0, 1e3),
        "lambda_power": (0.0, 10.0),
        "lambda_min": (0.0, 1e6),
    }
    step: Tensor

    def __init__(
        self,
        value: float = 4.0,
        lambda_base: float = 1000.0,
        lambda_gamma: float = 0.12,
        lambda_power: float = 1.0,
        lambda_min: float = 5.0,
    ) -> None:
        super().__init__()
        self.value = value
        self.lambda_base = lambda_base
        self.lambda_gamma = lambda_gamma
        self.lambda_power = lambda_power
        self.lambda_min = lambda_min
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, targets: Targets) -> Tensor:
        psi = falling_cosine(self.value * angle(targets.cosines))
        plain = self.plain_weight()
        return (plain * targets.cosines + psi) / (1.0 + plain)

    def plain_weight(self) -> Tensor:
        """Lambda now: how many times the plain cosine weighs psi's one."""
        falling = (1.0 + self.lambda_gamma * self.step) ** -self.lambda_power
        return (self.lambda_base * falling).clamp(min=self.lambda_min)

    def observe(self, norms_n: Tensor | None, target_cosines_n: Tensor | None) -> None:
        self.step += 1
