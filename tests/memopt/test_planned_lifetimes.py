"""Pieces of memory of planned iterations: together they are what the simulator counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memopt.capture import CostTable
from memopt.errors import BudgetTooSmallError
from memopt.placement import graph_lifetimes, place
from memopt.plan import make_plan, trace, with_costs
from memopt.planned_lifetimes import planned_lifetimes
from memopt.planners import plan_offline
from memopt.schedule import Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import random_graph


@pytest.mark.parametrize("seed", range(20))
def test_most_alive_at_once_is_the_simulated_peak(seed: int) -> None:
    graph = random_graph(seed, 24)
    plain = simulate(graph, Schedule()).peak_bytes
    for share in (1.0, 0.8, 0.6, 0.5):
        try:
            schedule = plan_offline(graph, int(share * plain))
        except BudgetTooSmallError:
            continue
        result = simulate(graph, schedule)
        placement = place(planned_lifetimes(graph, schedule))
        workspace = max(operator.workspace_bytes for operator in graph.operators)
        assert result.peak_bytes - workspace <= placement.lower_bound_bytes <= result.peak_bytes


def test_without_drops_they_are_the_plain_ones() -> None:
    graph = random_graph(1, 24)
    plain = sorted(
        (life.first, life.last, life.size_bytes) for life in graph_lifetimes(graph).values()
    )
    ours = sorted((p.first, p.last, p.size_bytes) for p in planned_lifetimes(graph, Schedule()))
    assert [size for *_, size in ours] == [size for *_, size in plain]
    assert place(planned_lifetimes(graph, Schedule())).lower_bound_bytes <= graph.plain_peak_bytes()


def test_a_real_step_in_place() -> None:
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(5)
        for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ]
    model, x = nn.Sequential(*layers), torch.randn(4, 8, 16, 16)
    costs = CostTable(num_runs=1)
    recording = with_costs(trace(model, (x,)), costs)
    plain = recording.graph.plain_peak_bytes()
    for share in (1.0, 0.8, 0.6):
        plan = make_plan(recording, int(share * plain), costs=costs)
        lifetimes = planned_lifetimes(plan.step.graph, plan.schedule)
        peak = simulate(plan.step.graph, plan.schedule).peak_bytes
        placement = place(lifetimes)
        assert placement.lower_bound_bytes == peak
        assert placement.over_bound < 1.25
