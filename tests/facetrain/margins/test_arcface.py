"""ArcFace against cos(theta + m) by the angle itself, and its continuation past pi."""

from __future__ import annotations

import math

import pytest

from facetrain.margins import ArcFace
from tests.facetrain.margins.checks import apply, central_difference, slopes


@pytest.mark.parametrize("margin_rad", [0.0, 0.3, 0.5, 1.2])
def test_arcface_is_the_cosine_of_the_angle_plus_margin_then_keeps_falling(
    margin_rad: float,
) -> None:
    angles = [0.001 + i * (math.pi - 0.002) / 499 for i in range(500)]
    for angle, value in zip(
        angles, apply(ArcFace(margin_rad), [math.cos(a) for a in angles]), strict=True
    ):
        if angle + margin_rad < math.pi:
            expected = math.cos(angle + margin_rad)
        else:
            expected = math.cos(angle) - margin_rad * math.sin(margin_rad)
        assert value == pytest.approx(expected, abs=1e-9)


def test_arcface_slope_is_that_of_its_formula() -> None:
    cosines = [-0.95, -0.5, 0.2, 0.7, 0.99]
    found, _ = slopes(ArcFace(), cosines)
    for cosine, slope in zip(cosines, found, strict=True):
        expected = central_difference(lambda c: apply(ArcFace(), [c])[0], cosine)
        assert slope == pytest.approx(expected, rel=1e-6)
    assert found[0] == 1.0  # past pi
    angle = math.acos(0.2)
    assert found[2] == pytest.approx(math.sin(angle + 0.5) / math.sin(angle))
