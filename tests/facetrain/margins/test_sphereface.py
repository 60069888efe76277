"""SphereFace against psi by cases, for whole and broken m, and its annealing step by step."""

from __future__ import annotations

import itertools
import math

import pytest

from facetrain.margins import SphereFace
from tests.facetrain.margins.checks import apply, central_difference, slopes

ANGLES = [0.003 + i * 3.135 / 300 for i in range(301)]
COSINES = [math.cos(angle) for angle in ANGLES]


@pytest.mark.parametrize("factor", [1.0, 1.7, 2.0, 3.0, 4.0, 5.5])
def test_psi_without_annealing_is_the_papers_piecewise_cosine(factor: float) -> None:
    margin = SphereFace(factor, lambda_base=0.0, lambda_min=0.0)
    values = apply(margin, COSINES)
    for angle, value in zip(ANGLES, values, strict=True):
        piece = next(k for k in range(8) if factor * angle <= (k + 1) * math.pi)
        expected = (1 if piece % 2 == 0 else -1) * math.cos(factor * angle) - 2 * piece
        assert value == pytest.approx(expected, abs=1e-9)
    assert all(after <= before for before, after in itertools.pairwise(values))


def test_psi_of_four_equals_the_authors_polynomials() -> None:
    # Their code knows cos(4 theta) = 8 c^4 - 8 c^2 + 1 and picks signs from c and 2 c^2 - 1.
    margin = SphereFace(lambda_base=0.0, lambda_min=0.0)
    for cosine, value in zip(COSINES, apply(margin, COSINES), strict=True):
        sign_0 = math.copysign(1, cosine)
        sign_3 = sign_0 * math.copysign(1, 2 * cosine**2 - 1)
        expected = sign_3 * (8 * cosine**4 - 8 * cosine**2 + 1) + 2 * sign_0 + sign_3 - 3
        assert value == pytest.approx(expected, abs=1e-9)


def test_annealing_follows_the_authors_schedule_from_the_first_step() -> None:
    margin = SphereFace()
    psi = apply(SphereFace(lambda_base=0.0, lambda_min=0.0), COSINES)
    for step in range(1, 2001):
        margin.observe(None, None)
        if step in (1, 2, 10, 1658, 1659, 2000):
            weight = max(5.0, 1000.0 / (1 + 0.12 * step))
            expected = [(weight * c + p) / (1 + weight) for c, p in zip(COSINES, psi, strict=True)]
            # Lambda is held in fp32.
            assert apply(margin, COSINES) == pytest.approx(expected, abs=1e-6)
    assert float(margin.plain_weight()) == 5.0


def test_annealing_power_and_slope() -> None:
    margin = SphereFace(3.3, lambda_base=10.0, lambda_gamma=0.5, lambda_power=2.0, lambda_min=0.1)
    margin.observe(None, None)
    margin.observe(None, None)
    assert float(margin.plain_weight()) == pytest.approx(10 / (1 + 0.5 * 2) ** 2)
    cosines = [-0.9, -0.3, 0.2, 0.8, 0.99]
    for cosine, slope in zip(cosines, slopes(margin, cosines)[0], strict=True):
        expected = central_difference(lambda c: apply(margin, [c])[0], cosine)
        assert slope == pytest.approx(expected, rel=1e-5)
