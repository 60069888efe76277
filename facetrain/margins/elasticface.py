"""ElasticFace: the margin of each row is drawn anew in every step.

Boutros et al., CVPR workshops 2022, section 3: ArcFace's m from N(0.5, 0.05), or CosFace's
from N(0.35, 0.05). A draw outside the margin's own range, ten (seven) deviations away, counts as
the end of it; in evaluation mode the mean is used. Draws come from a generator keyed by (seed,
number of draws so far), for all rows of the global batch: equal on every rank, on any number of
ranks and after a resumption.

The paper's "+" variants, which give larger draws to rows further from their center, are not built:
they need all target cosines on every rank before the loss.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from facetrain.errors import FacetrainError
from facetrain.margins.angles import add_angle
from facetrain.margins.margin import Margin, Ranges, Targets

_SEED_RANGE = (0.0, 2.0**31 - 1)


class _ElasticFace(Margin):
    """Draws and keeps the margins of a step.

    Args:
        value: mean of m.
        std: its standard deviation.
        seed: a whole number.

    Raises:
        FacetrainError: seed is a fraction.
    """

    seed: Tensor
    step: Tensor
    margins_n: Tensor

    def __init__(self, value: float, std: float, seed: float) -> None:
        if seed != int(seed):
            raise FacetrainError(f"elasticface: seed {seed:g} must be a whole number")
        super().__init__()
        self.value = value
        self.std = std
        self.register_buffer("seed", torch.tensor(int(seed)))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("margins_n", torch.empty(0), persistent=False)

    def draw(self, num_rows: int) -> None:
        # On the CPU: the same numbers whatever the device. NumPy mixes both numbers into its key,
        # of which torch's CPU generator would keep 32 bits.
        generator = np.random.default_rng((int(self.seed), int(self.step)))
        noise = torch.from_numpy(generator.standard_normal(num_rows, dtype=np.float32))
        margins_n = (self.value + self.std * noise).clamp(*self.ranges["value"])
        self.margins_n = margins_n.to(self.step.device)
        self.step += 1

    def _margins(self, targets: Targets) -> float | Tensor:
        return self.margins_n[targets.rows] if self.training else self.value


class ElasticArcFace(_ElasticFace):
    """ArcFace with a margin in radians drawn for each row."""

    ranges: ClassVar[Ranges] = {"value": (0.0, math.pi / 2), "std": (0.0, 1.0), "seed": _SEED_RANGE}

    def __init__(self, value: float = 0.5, std: float = 0.05, seed: float = 0.0) -> None:
        super().__init__(value, std, seed)

    def forward(self, targets: Targets) -> Tensor:
        return add_angle(targets.cosines, self._margins(targets))


class ElasticCosFace(_ElasticFace):
    """CosFace with a margin drawn for each row."""

    ranges: ClassVar[Ranges] = {"value": (0.0, 1.0), "std": (0.0, 1.0), "seed": _SEED_RANGE}

    def __init__(self, value: float = 0.35, std: float = 0.05, seed: float = 0.0) -> None:
        super().__init__(value, std, seed)

    def forward(self, targets: Targets) -> Tensor:
        return targets.cosines - self._margins(targets)
