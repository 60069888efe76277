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
    cos_a, sin_a = _cos_sin(angle_rad)
    return cosines * cos_a - sine(cosines) * sin_a


def add_angle(cosines: Tensor, margin_rad: float | Tensor) -> Tensor:
    """cos(theta + m), continued past theta + m = pi by cos(theta) - m sin(m), which falls on.

    Args:
        cosines: of theta, [M].
        margin_rad: m in [0, pi], one for all or one each, [M].
    """
    cos_m, sin_m = _cos_sin(margin_rad)
    return torch.where(cosines > -cos_m, rotate(cosines, margin_rad), cosines - margin_rad * sin_m)


def falling_cosine(angles_rad: Tensor) -> Tensor:
    """(-1)^k cos(a) - 2k with k = floor(a / pi): the cosine up to pi, then falling for ever.

    Args:
        angles_rad: a >= 0, [M].
    """
    half_turns = torch.floor(angles_rad.detach() / math.pi)
    signs = 1.0 - 2.0 * torch.remainder(half_turns, 2.0)
    return signs * angles_rad.cos() - 2.0 * half_turns


def _cos_sin(angle_rad: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    if isinstance(angle_rad, Tensor):
        return angle_rad.cos(), angle_rad.sin()
    return math.cos(angle_rad), math.sin(angle_rad)
