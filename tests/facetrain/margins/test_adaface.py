"""AdaFace: both margins from the length's place among running statistics of the global batch."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from facetrain.margins import AdaFace
from tests.facetrain.margins.checks import apply, central_difference, slopes


def expected_cosine(cosine: float, length: float, mean: float, std: float) -> float:
    """The paper's two margins, the angle held in [0, pi]."""
    z = 0.333 * (min(max(length, 0.001), 100.0) - mean) / (std + 0.001)
    z = min(max(z, -1.0), 1.0)
    angle = min(max(math.acos(cosine) - 0.4 * z, 0.0), math.pi)
    return math.cos(angle) - (0.4 + 0.4 * z)


def at(mean: float, std: float) -> AdaFace:
    margin = AdaFace()
    margin.mean.fill_(mean)
    margin.std.fill_(std)
    return margin


LENGTHS = [0.0, 3.0, 18.0, 20.0, 24.5, 40.0, 99.0, 5000.0]


@pytest.mark.parametrize("cosine", [-0.99, -0.6, 0.0, 0.5, 0.97])
def test_margin_follows_the_length(cosine: float) -> None:
    found = apply(at(20.0, 5.0), [cosine] * len(LENGTHS), LENGTHS)
    expected = [expected_cosine(cosine, length, 20.0, 5.0) for length in LENGTHS]
    assert found == pytest.approx(expected, abs=1e-6)  # statistics are fp32


def test_short_mean_and_long_rows_get_arcface_both_and_negative_angle() -> None:
    short, mean, long = apply(at(20.0, 5.0), [0.3] * 3, [0.1, 20.0, 100.0])
    angle = math.acos(0.3)
    assert short == pytest.approx(math.cos(angle + 0.4))
    assert mean == pytest.approx(0.3 - 0.4)
    assert long == pytest.approx(math.cos(angle - 0.4) - 0.8)


def test_slopes_in_cosines_are_right_and_lengths_get_none() -> None:
    margin = at(20.0, 5.0)
    cosines = [-0.99, -0.5, 0.2, 0.9, 0.99]
    for length in LENGTHS:
        in_cosines, in_lengths = slopes(margin, cosines, [length] * len(cosines))
        assert in_lengths is None
        for cosine, slope in zip(cosines, in_cosines, strict=True):
            expected = central_difference(lambda c, a=length: apply(margin, [c], [a])[0], cosine)
            assert slope == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_statistics_run_over_batches_and_a_single_row_has_no_spread() -> None:
    margin = AdaFace()
    mean, std = 20.0, 100.0
    for batch in ([10.0, 30.0, 12.5], [25.0], [0.0, 400.0, 50.0, 20.0], [7.0, 7.0]):
        margin.observe(torch.tensor(batch), None)
        held = [min(max(length, 0.001), 100.0) for length in batch]
        mean = 0.01 * statistics.fmean(held) + 0.99 * mean
        if len(held) > 1:
            std = 0.01 * statistics.stdev(held) + 0.99 * std
        assert float(margin.mean) == pytest.approx(mean, rel=1e-6)
        assert float(margin.std) == pytest.approx(std, rel=1e-6)
