"""MagFace: margin and penalty from the length, gradients through both, nothing outside its ends."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain.margins import MagFace, build_margin
from tests.facetrain.margins.checks import apply, central_difference, slopes


def margin_of(length: float) -> float:
    """The line from (10, 0.45) to (110, 0.8), level outside."""
    return 0.45 + 0.0035 * (min(max(length, 10.0), 110.0) - 10.0)


def test_target_angle_grows_by_the_lengths_margin() -> None:
    lengths = [1.0, 10.0, 35.0, 60.0, 110.0, 500.0]
    assert margin_of(60.0) == pytest.approx((0.45 + 0.8) / 2)
    for cosine in (-0.5, 0.1, 0.8):
        found = apply(MagFace(), [cosine] * len(lengths), lengths)
        expected = [math.cos(math.acos(cosine) + margin_of(length)) for length in lengths]
        assert found == pytest.approx(expected)
    margin_rad = margin_of(60.0)  # past pi
    assert apply(MagFace(), [-0.99], [60.0]) == pytest.approx(
        [-0.99 - margin_rad * math.sin(margin_rad)]
    )


def test_both_slopes_are_those_of_the_formula_and_held_lengths_get_none() -> None:
    cosines, lengths = [-0.97, -0.2, 0.3, 0.9, 0.9, 0.9], [40.0, 11.0, 80.0, 109.0, 5.0, 200.0]
    in_cosines, in_lengths = slopes(MagFace(), cosines, lengths)
    assert in_lengths is not None
    for row, (cosine, length) in enumerate(zip(cosines, lengths, strict=True)):
        by_cosine = central_difference(lambda c, a=length: apply(MagFace(), [c], [a])[0], cosine)
        assert in_cosines[row] == pytest.approx(by_cosine, rel=1e-5)
        by_length = central_difference(lambda a, c=cosine: apply(MagFace(), [c], [a])[0], length)
        assert in_lengths[row] == pytest.approx(by_length, rel=1e-5, abs=1e-9)
    assert in_lengths[4:] == [0.0, 0.0]


def test_penalty_is_convex_and_least_at_the_longest() -> None:
    lengths = torch.tensor([4.0, 10.0, 50.0, 110.0, 300.0], dtype=torch.float64, requires_grad=True)
    found = MagFace().penalty(lengths)
    expected = [35 * (a / 110**2 + 1 / a) for a in (10.0, 10.0, 50.0, 110.0, 110.0)]
    assert found.tolist() == pytest.approx(expected)
    (grads,) = torch.autograd.grad(found.sum(), lengths)
    assert grads[[0, 4]].tolist() == [0.0, 0.0]
    assert float(grads[2]) == pytest.approx(35 * (1 / 110**2 - 1 / 50**2))
    assert float(grads[3]) == pytest.approx(0.0, abs=1e-12)


def test_easy_margin_leaves_negative_cosines_alone() -> None:
    margin = MagFace(easy_margin=1.0)
    assert apply(margin, [-0.6, -0.01], [30.0, 30.0]) == [-0.6, -0.01]
    found = apply(margin, [0.4], [30.0])
    assert found == pytest.approx([math.cos(math.acos(0.4) + margin_of(30.0))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l_m": 0.9}, "magface: u_m 0.8 is below l_m 0.9"),
        ({"u_a": 10.0}, "magface: u_a 10 must be above l_a 10"),
        ({"easy_margin": 0.5}, "magface: easy_margin 0.5 must be 0 or 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(FacetrainError, match=message):
        build_margin("magface", options)
