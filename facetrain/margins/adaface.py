"""AdaFace: which rows count most depends on the embedding's length, a stand-in for image quality.

Kim et al., CVPR 2022, section 3.3; m = 0.4, h = 0.333:

    z = clip(h (length - mean) / std, -1, 1),     cos(theta - m z) - (m + m z)

`mean` and `std` are running, a step's share being t_alpha = 0.01, of the global batch (the authors'
code: of one rank's). As in their code: lengths are held in [0.001, 100] and get no gradient; std is
the unbiased one plus 0.001; both start at 20 and 100 and are updated before use; theta - m z stays
in [0, pi], where the slope is 0 outside. Their clamp of cosines to 0.999 is left out: the sine
needs none here.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from facetrain.margins.angles import rotate
from facetrain.margins.margin import Margin, Ranges, Targets, move_towards

_NORM_RANGE = (0.001, 100.0)
_STD_OFFSET = 1e-3


class AdaFace(Margin):
    """Margin by feature norm: long embeddings are pulled when hard, short ones when easy.

    Args:
        value: m, in radians and as a cosine difference.
        h: how far a length of one std above the mean moves z.
        t_alpha: share of a step's statistics in the running ones.
    """

    ranges: ClassVar[Ranges] = {"value": (0.0, 1.0), "h": (0.0, 10.0), "t_alpha": (0.0, 1.0)}
    uses_norms = True
    mean: Tensor
    std: Tensor

    def __init__(self, value: float = 0.4, h: float = 0.333, t_alpha: float = 0.01) -> None:
        super().__init__()
        self.value = value
        self.h = h
        self.t_alpha = t_alpha
        self.register_buffer("mean", torch.tensor(20.0))
        self.register_buffer("std", torch.tensor(100.0))

    def forward(self, targets: Targets) -> Tensor:
        assert targets.norms is not None
        lengths = targets.norms.detach().clamp(*_NORM_RANGE)
        quality = (self.h * (lengths - self.mean) / (self.std + _STD_OFFSET)).clamp(-1.0, 1.0)
        added_rad = -self.value * quality
        cosines = targets.cosines
        rotated = rotate(cosines, added_rad)
        rotated = torch.where((added_rad < 0) & (cosines > added_rad.cos()), 1.0, rotated)
        rotated = torch.where((added_rad > 0) & (cosines < -added_rad.cos()), -1.0, rotated)
        return rotated - (self.value + self.value * quality)

    def observe(self, norms_n: Tensor | None, target_cosines_n: Tensor | None) -> None:
        assert norms_n is not None
        lengths = norms_n.detach().clamp(*_NORM_RANGE)
        move_towards(self.mean, lengths.mean(), self.t_alpha)
        if len(lengths) > 1:  # a single row has no spread
            move_towards(self.std, lengths.std(), self.t_alpha)
