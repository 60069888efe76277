from __future__ import annotations

import math

import pytest

from facetrain.throughput import Clock, Interval


def test_clock_leaves_out_the_steps_that_do_not_count() -> None:
    clock = Clock()
    clock.add(100.0, 90.0, 64, counted=False)
    clock.add(2.0, 0.5, 64, counted=True)
    clock.add(2.0, 1.5, 64, counted=True)
    assert (clock.images_per_s, clock.input_share) == (32.0, 0.5)
    assert Clock().images_per_s == Clock().input_share == 0.0


def test_input_bound_is_said_once_and_only_when_sure() -> None:
    clock = Clock()
    verdicts = []
    for _ in range(40):
        clock.add(1.0, 0.4, 64, counted=True)
        verdicts.append(clock.input_verdict(last=False))
    (said,) = [verdict for verdict in verdicts if verdict]
    assert verdicts.index(said) == 19
    assert said.startswith("input-bound: 40% of the time")
    assert clock.input_verdict(last=True) is None


@pytest.mark.parametrize(("waited_s", "bound"), [(0.31, True), (0.29, False)])
def test_a_short_run_is_judged_at_its_end(waited_s: float, bound: bool) -> None:
    clock = Clock()
    clock.add(1.0, waited_s, 64, counted=True)
    assert clock.input_verdict(last=False) is None
    assert (clock.input_verdict(last=True) is not None) == bound


def test_interval_averages_finite_losses_and_counts_all_images() -> None:
    interval = Interval()
    interval.add(1.0, 1.0, 0.25, 10)
    interval.add(math.nan, 1.0, 0.25, 10)
    interval.add(3.0, 2.0, 0.5, 20)
    assert (interval.mean_loss, interval.images_per_s, interval.input_share) == (2.0, 10.0, 0.25)
    assert math.isnan(Interval().mean_loss)
