"""MagFace: a margin that grows with the embedding's length, which becomes a measure of quality.

Meng et al., CVPR 2021, section 3.2: cos(theta + m(a)) with a the length, held in [l_a, u_a],

    m(a) = l_m + (u_m - l_m) (a - l_a) / (u_a - l_a),     loss += lambda_g (a / u_a^2 + 1 / a)

Gradients reach the length through both, as in the authors' code, and none where a is held. (10,
110, 0.45, 0.8, 35) are theirs; lambda_g should be at least s K u_a^2 l_a^2 / (u_a^2 - l_a^2), K the
slope of m(a), 22.6 with these and s = 64.

The formula is the paper's, continued past pi as in ArcFace (a branch of the authors' code). What
their code runs by default is `easy_margin`: no margin where cos(theta) <= 0, a jump.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from facetrain.errors import FacetrainError
from facetrain.margins.angles import add_angle, rotate
from facetrain.margins.margin import Margin, Ranges, Targets


class MagFace(Margin):
    """Adds an angle that depends on the embedding's length, and a penalty on short embeddings.

    Args:
        l_m: margin of embeddings of length l_a or less, in radians.
        u_m: margin of those of length u_a or more.
        l_a: lower end of lengths.
        u_a: upper end of lengths.
        lambda_g: weight of the penalty.
        easy_margin: 1 for a margin on positive cosines only, else 0.

    Raises:
        FacetrainError: an upper end below the lower one, or easy_margin between 0 and 1.
    """

    ranges: ClassVar[Ranges] = {
        "l_m": (0.0, math.pi / 2),
        "u_m": (0.0, math.pi / 2),
        "l_a": (1e-3, 1e4),
        "u_a": (1e-3, 1e4),
        "lambda_g": (0.0, 1e4),
        "easy_margin": (0.0, 1.0),
    }
    uses_norms = True

    def __init__(
        self,
        l_m: float = 0.45,
        u_m: float = 0.8,
        l_a: float = 10.0,
        u_a: float = 110.0,
        lambda_g: float = 35.0,
        easy_margin: float = 0.0,
    ) -> None:
        if u_m < l_m:
            raise FacetrainError(f"magface: u_m {u_m:g} is below l_m {l_m:g}")
        if u_a <= l_a:
            raise FacetrainError(f"magface: u_a {u_a:g} must be above l_a {l_a:g}")
        if easy_margin not in (0, 1):
            raise FacetrainError(f"magface: easy_margin {easy_margin:g} must be 0 or 1")
        super().__init__()
        self.l_m = l_m
        self.u_m = u_m
        self.l_a = l_a
        self.u_a = u_a
        self.lambda_g = lambda_g
        self.easy_margin = easy_margin

    def forward(self, targets: Targets) -> Tensor:
        assert targets.norms is not None
        lengths = targets.norms.clamp(self.l_a, self.u_a)
        slope = (self.u_m - self.l_m) / (self.u_a - self.l_a)
        margins_rad = self.l_m + slope * (lengths - self.l_a)
        if self.easy_margin:
            rotated = rotate(targets.cosines, margins_rad)
            return torch.where(targets.cosines > 0, rotated, targets.cosines)
        return add_angle(targets.cosines, margins_rad)

    def penalty(self, norms: Tensor) -> Tensor:
        lengths = norms.clamp(self.l_a, self.u_a)
        return self.lambda_g * (lengths / self.u_a**2 + 1.0 / lengths)
