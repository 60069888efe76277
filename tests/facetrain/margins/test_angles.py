"""Angles and rotated cosines in fp32 against Python's float64 arccos."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.margins.angles import add_angle, angle, falling_cosine, rotate, sine

# Cosines fp32 can hold, most of them where arccos is steep.
COSINES = torch.cat(
    [
        1 - torch.logspace(-7, -1, 40),
        -1 + torch.logspace(-7, -1, 40),
        torch.linspace(-0.9, 0.9, 37),
    ]
)


def test_angle_and_sine_lose_no_digits_of_an_fp32_cosine_near_the_ends() -> None:
    for cosine, found, found_sine in zip(
        COSINES.tolist(), angle(COSINES).tolist(), sine(COSINES).tolist(), strict=True
    ):
        assert found == pytest.approx(math.acos(cosine), rel=5e-7)  # a few units of 2^-24
        assert found_sine == pytest.approx(math.sin(math.acos(cosine)), rel=5e-7)


@pytest.mark.parametrize("margin_rad", [0.0, 0.3, 0.5, 1.2])
def test_fp32_rotation_is_right_to_rounding(margin_rad: float) -> None:
    for cosine, found in zip(COSINES.tolist(), rotate(COSINES, margin_rad).tolist(), strict=True):
        assert found == pytest.approx(math.cos(math.acos(cosine) + margin_rad), abs=2e-7)


def test_add_angle_takes_a_margin_for_each_row_and_passes_its_gradient() -> None:
    cosines = torch.tensor([0.8, -0.2, -0.95], dtype=torch.float64)
    margins = torch.tensor([0.2, 0.6, 0.7], dtype=torch.float64, requires_grad=True)
    found = add_angle(cosines, margins)
    (grads,) = torch.autograd.grad(found.sum(), margins)
    rows = list(
        zip(cosines.tolist(), margins.tolist(), found.tolist(), grads.tolist(), strict=True)
    )
    for cosine, margin_rad, value, slope in rows[:2]:
        assert value == pytest.approx(math.cos(math.acos(cosine) + margin_rad))
        assert slope == pytest.approx(-math.sin(math.acos(cosine) + margin_rad))
    cosine, margin_rad, value, slope = rows[2]  # theta + m is beyond pi
    assert value == pytest.approx(cosine - margin_rad * math.sin(margin_rad))
    assert slope == pytest.approx(-math.sin(margin_rad) - margin_rad * math.cos(margin_rad))


def test_falling_cosine_is_continuous_and_falls_over_many_half_turns() -> None:
    angles = torch.linspace(0, 8 * math.pi, 4001, dtype=torch.float64)
    values = falling_cosine(angles)
    steps = values.diff()
    assert bool((steps <= 0).all())
    assert float(steps.min()) >= -float(angles[1]) * 1.001  # no jump: |slope| <= 1
    assert float(values[-1]) == pytest.approx(1 - 2 * 8)


def test_ends_have_finite_slopes_and_rounding_past_them_gives_no_nan() -> None:
    cosines = torch.tensor([1.0, -1.0, 1.000001, -1.000001], requires_grad=True)
    for function in (sine, angle, lambda c: rotate(c, 0.5), lambda c: add_angle(c, 0.5)):
        values = function(cosines)
        (grads,) = torch.autograd.grad(values.sum(), cosines)
        assert bool(torch.isfinite(values).all())
        assert bool(torch.isfinite(grads).all())
    assert angle(cosines).tolist() == pytest.approx([0, math.pi, 0, math.pi])
