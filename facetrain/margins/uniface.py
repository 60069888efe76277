"""UniFace: one threshold parts every row's target from every other class.

Zhou et al., ICCV 2023: the unified cross-entropy loss with CosFace's margin, m = 0.4, and one
learned bias b, the threshold, in place of the softmax:

    log(1 + exp(b - s (cos_y - m))) + l sum over j != y of log(1 + exp(s cos_j - b))

b starts at log(10 C r), C classes of which the share r is in use, and l, the weight of other
classes, is 1, both as in the authors' code. Their code clamps the exponents to [-s, s], which takes
the gradient from the hardest rows; the paper does not, nor do we. The head computes both terms, the
margin subtracts m.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from facetrain.margins.margin import Margin, Ranges, Targets


class UniFace(Margin):
    """CosFace's difference for the unified cross-entropy.

    Args:
        value: m, as a cosine difference.
        others_weight: l.
    """

    ranges: ClassVar[Ranges] = {"value": (0.0, 1.0), "others_weight": (0.0, 1e3)}

    def __init__(self, value: float = 0.4, others_weight: float = 1.0) -> None:
        super().__init__()
        self.value = value
        self.others_weight = float(others_weight)
        self.bias = nn.Parameter(torch.zeros(()))
        """The same on every rank."""

    def initialise(self, num_classes: int, sample_rate: float) -> None:
        nn.init.constant_(self.bias, math.log(10.0 * num_classes * sample_rate))

    def unified(self) -> tuple[Tensor, float]:
        return self.bias, self.others_weight

    def forward(self, targets: Targets) -> Tensor:
        return targets.cosines - self.value
