"""UniFace: CosFace's difference, and a learned bias that starts where the authors' does."""

from __future__ import annotations

import math

import pytest

from facetrain.margins import UniFace
from tests.facetrain.margins.checks import apply, slopes


def test_target_cosine_loses_the_margin() -> None:
    cosines = [-1.0, 0.2, 1.0]
    assert apply(UniFace(), cosines) == pytest.approx([-1.4, -0.2, 0.6])
    assert slopes(UniFace(), cosines)[0] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("num_classes", "sample_rate"), [(2, 1.0), (85742, 0.1)])
def test_bias_starts_at_the_log_of_ten_times_the_classes_in_use(
    num_classes: int, sample_rate: float
) -> None:
    margin = UniFace()
    margin.initialise(num_classes, sample_rate)
    assert margin.bias.item() == pytest.approx(math.log(num_classes * sample_rate * 10))
    assert margin.bias.requires_grad
    assert margin.bias.shape == ()
