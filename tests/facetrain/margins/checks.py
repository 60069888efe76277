"""Shared by the tests of margins: rows from numbers, slopes by differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from facetrain.margins import Margin, Targets


def apply(
    margin: Margin, cosines: Sequence[float], norms: Sequence[float] | None = None
) -> list[float]:
    """What a margin makes of target cosines, in float64, row by row."""
    lengths = None if norms is None else torch.tensor(norms, dtype=torch.float64)
    rows = torch.arange(len(cosines))
    return margin(Targets(torch.tensor(cosines, dtype=torch.float64), rows, lengths)).tolist()


def slopes(
    margin: Margin, cosines: Sequence[float], norms: Sequence[float] | None = None
) -> tuple[list[float], list[float] | None]:
    """Slopes in cosines and in norms by autograd, float64; None where norms get no gradient."""
    inputs = [torch.tensor(cosines, dtype=torch.float64, requires_grad=True)]
    if norms is not None:
        inputs.append(torch.tensor(norms, dtype=torch.float64, requires_grad=True))
    rows = torch.arange(len(cosines))
    result = margin(Targets(inputs[0], rows, inputs[1] if norms is not None else None))
    grads = torch.autograd.grad(result.sum(), inputs, allow_unused=True)
    in_norms: Tensor | None = grads[1] if norms is not None else None
    return grads[0].tolist(), None if in_norms is None else in_norms.tolist()


def central_difference(function: Callable[[float], float], at: float, step: float = 1e-6) -> float:
    """Slope of a smooth function, to about 1e-9 of its third derivative."""
    return (function(at + step) - function(at - step)) / (2 * step)
