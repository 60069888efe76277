"""The combined margin: all three parts at once, the three margins it holds, falling past pi."""

from __future__ import annotations

import math

import pytest

from facetrain.margins import ArcFace, CombinedMargin, CosFace, SphereFace
from tests.facetrain.margins.checks import apply, central_difference, slopes

ANGLES = [0.01 + i * 3.12 / 120 for i in range(121)]
COSINES = [math.cos(angle) for angle in ANGLES]


@pytest.mark.parametrize("parts", [(1.0, 0.3, 0.2), (0.9, 0.4, 0.15), (2.3, 0.2, 0.1)])
def test_all_three_parts_act_together_and_fall_past_pi(parts: tuple[float, float, float]) -> None:
    m1, m2, m3 = parts
    for angle, value in zip(ANGLES, apply(CombinedMargin(*parts), COSINES), strict=True):
        turned = m1 * angle + m2
        if turned <= math.pi:
            expected = math.cos(turned)
        elif turned <= 2 * math.pi:
            expected = -math.cos(turned) - 2
        else:
            expected = math.cos(turned) - 4
        assert value == pytest.approx(expected - m3, abs=1e-9)


def test_single_parts_are_the_margins_it_combines() -> None:
    assert apply(CombinedMargin(1, 0, 0.35), COSINES) == pytest.approx(apply(CosFace(), COSINES))
    below_pi = [cosine for cosine in COSINES if math.acos(cosine) + 0.5 < math.pi]
    assert apply(CombinedMargin(1, 0.5, 0), below_pi) == pytest.approx(apply(ArcFace(), below_pi))
    psi_alone = SphereFace(4.0, lambda_base=0.0, lambda_min=0.0)
    assert apply(CombinedMargin(4, 0, 0), COSINES) == pytest.approx(apply(psi_alone, COSINES))


def test_slope_is_that_of_the_formula_on_both_sides_of_pi() -> None:
    margin = CombinedMargin(1.5, 0.3, 0.2)
    cosines = [-0.9, -0.4, 0.1, 0.6, 0.95]
    for cosine, slope in zip(cosines, slopes(margin, cosines)[0], strict=True):
        expected = central_difference(lambda c: apply(margin, [c])[0], cosine)
        assert slope == pytest.approx(expected, rel=1e-6)
