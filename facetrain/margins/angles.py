"""Sines and angles from cosines, and cosines of angles moved by a margin.

Cosines of a trained network crowd at 1, where arccos is infinitely steep: there
sin = sqrt((1 - cos)(1 + cos)) keeps every digit of an fp32 cosine, for 1 - cos is exact, and what
follows from it does too. At |cos| >= 1 (rounding) the sine is 0 with slope 0, so that values are
exact and slopes finite everywhere; the true slope is infinite there, but has no direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sine(cosines: Tensor) -> Tensor:
    """sin(theta) >= 0."""
    squares = (1.0 - cosines) * (1.0 + cosines)
    inside = squares > 0
    # The inner `where` keeps the root's infinite slope at 0 out of the gradient, as inf * 0 is NaN.
    return torch.where(inside, torch.where(inside, squares, 1.0).sqrt(), 0.0)


def angle(cosines: Tensor) -> Tensor:
    """Theta in radians, in [0, pi]; slope 0 at |cos| >= 1."""
    return torch.atan2(sine(cosines), cosines)


def rotate(cosines: Tensor, angle_rad: float | Tensor) -> Tensor:
    """cos(theta + a) without forming theta.

    Args:
        cosines: of theta, [M].
        angle_rad: a, one for all or one each, [M].
    """
    angle_rad = torch.as_tensor(angle_rad, dtype=cosines.dtype, device=cosines.device)
    return cosines * angle_rad.cos() - sine(cosines) * angle_rad.sin()


def add_angle(cosines: Tensor, margin_rad: float | Tensor) -> Tensor:
    """cos(theta + m), continued past theta + m = pi by cos(theta) - m sin(m), which falls on.

    Args:
        cosines: of theta, [M].
        margin_rad: m in [0, pi], one for all or one each, [M].
    """
    margin_rad = torch.as_tensor(margin_rad, dtype=cosines.dtype, device=cosines.device)
    beyond = cosines - margin_rad * margin_rad.sin()
    return torch.where(cosines > -margin_rad.cos(), rotate(cosines, margin_rad), beyond)


def falling_cosine(angles_rad: Tensor) -> Tensor:
    """(-1)^k cos(a) - 2k with k = floor(a / pi): the cosine up to pi, then falling for ever.

    Args:
        angles_rad: a >= 0, [M].
    """
    half_turns = torch.floor(angles_rad.detach() / math.pi)
    signs = 1.0 - 2.0 * torch.remainder(half_turns, 2.0)
    return signs * angles_rad.cos() - 2.0 * half_turns
