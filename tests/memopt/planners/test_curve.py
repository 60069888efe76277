"""Curves: monotone whatever the graph, and what each budget's own plan comes to."""

from __future__ import annotations

import pytest

from memopt.graph import OpGraph
from memopt.planners import plan_curve, plan_offline
from memopt.schedule import Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import chain, random_graph

SHARES = (1.2, 1.0, 0.9, 0.7, 0.5, 0.35, 0.05)


@pytest.mark.parametrize(
    "graph", [chain(24), *(random_graph(seed, num_operators=30) for seed in range(5))]
)
def test_less_memory_never_takes_less_time_or_more_memory(graph: OpGraph) -> None:
    peak = simulate(graph, Schedule()).peak_bytes
    points = plan_curve(graph, [int(share * peak) for share in reversed(SHARES)])
    assert [point.budget_bytes for point in points] == [int(share * peak) for share in SHARES]
    found = [point for point in points if point.schedule is not None]
    assert points[: len(found)] == found
    for point in found:
        assert point.schedule is not None
        result = simulate(graph, point.schedule)
        assert result.peak_bytes == point.peak_bytes
        assert result.peak_bytes <= point.budget_bytes
        assert result.recompute_us == pytest.approx(point.recompute_us)
    peaks = [point.peak_bytes for point in found]
    times = [point.recompute_us for point in found]
    assert peaks == sorted(peaks, reverse=True)
    assert times == sorted(times)
    assert found[0].schedule == found[1].schedule == Schedule()
    assert points[-1].schedule is None


def test_points_are_about_what_each_budget_takes_alone() -> None:
    graph = chain(24)
    peak = simulate(graph, Schedule()).peak_bytes
    budgets = [int(share * peak) for share in (0.8, 0.6, 0.4)]
    for budget, point in zip(budgets, plan_curve(graph, budgets), strict=True):
        alone = simulate(graph, plan_offline(graph, budget))
        assert point.recompute_us == pytest.approx(alone.recompute_us, rel=0.1)
