"""ArcFace against cos(theta + m) by the angle itself, and its continuation past pi."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.margins import ArcFace


@pytest.mark.parametrize("margin_rad", [0.0, 0.3, 0.5, 1.2])
def test_arcface_is_the_cosine_of_the_angle_plus_margin_then_keeps_falling(
    margin_rad: float,
) -> None:
    angles = torch.linspace(0.001, math.pi - 0.001, 500, dtype=torch.float64)
    found = ArcFace(margin_rad)(angles.cos())
    for angle, value in zip(angles.tolist(), found.tolist(), strict=True):
        if angle + margin_rad < math.pi:
            expected = math.cos(angle + margin_rad)
        else:
            expected = math.cos(angle) - margin_rad * math.sin(margin_rad)
        assert value == pytest.approx(expected, abs=1e-9)
    assert float(found.max()) <= ArcFace(margin_rad).bound


def test_arcface_slope_is_finite_at_both_ends_and_right_between() -> None:
    cosines = torch.tensor([-1.0, -0.5, 0.2, 0.7, 1.0], requires_grad=True)
    ArcFace()(cosines).sum().backward()
    assert cosines.grad is not None
    assert torch.isfinite(cosines.grad).all()
    for cosine, slope in list(zip(cosines.tolist(), cosines.grad.tolist(), strict=True))[1:-1]:
        angle = math.acos(cosine)
        assert slope == pytest.approx(math.sin(angle + 0.5) / math.sin(angle), rel=1e-5)
