"""The integer program against every plan there is; the default planner against it."""

from __future__ import annotations

import importlib
import random

import pytest

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.planners import plan_offline
from memopt.planners.ilp import MOST_VALUES, plan_ilp
from memopt.schedule import Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import chain, random_graph
from tests.memopt.planners.plans import small_graphs

pytest.importorskip("scipy", reason="the planner ilp needs scipy")


def test_the_optimum_is_that_of_all_plans() -> None:
    cases = 0
    for graph, every in small_graphs(40, in_place=0.3):
        budgets = sorted({peak for peak, _ in every})
        for budget in (*budgets[:2], budgets[len(budgets) // 2]):
            result = simulate(graph, plan_ilp(graph, budget))
            assert result.peak_bytes <= budget
            best = min(time for peak, time in every if peak <= budget)
            assert result.recompute_us == pytest.approx(best)
            cases += 1
    assert cases > 25


def test_a_budget_below_every_plan_names_the_least_of_all() -> None:
    cases = 0
    for graph, every in small_graphs(30):
        least = min(peak for peak, _ in every)
        with pytest.raises(BudgetTooSmallError, match="the least of all schedules") as failed:
            plan_ilp(graph, least - 1)
        assert failed.value.least_bytes == least
        cases += 1
    assert cases > 5


def network(num_blocks: int) -> OpGraph:
    """Convolution, norm and activation, three times smaller each block; backward reads all."""
    draw = random.Random(num_blocks)
    storages = [Storage(1, Role.RESTING)]
    operators: list[Operator] = []
    saved: list[int] = []
    for block in range(num_blocks):
        size = 3 ** (num_blocks - block)
        for name, cost_us in (("conv", 20.0 + draw.random()), ("norm", 3.0), ("relu", 1.0)):
            storages.append(Storage(size))
            made = len(storages) - 1
            reads = (made - 1,) if block == 0 or name != "relu" else (made - 1, made - 3)
            operators.append(Operator(name, reads, (made,), cost_us))
            saved.append(made)
    last_use = [4 * len(saved)] * len(storages)
    gradient: int | None = None
    for value in reversed(saved):
        storages.append(storages[value])
        reads = (value,) if gradient is None else (value, gradient)
        made = len(storages) - 1
        last_use[value] = len(operators)
        if gradient is not None:
            last_use[gradient] = len(operators)
        last_use.append(len(operators) + 1)
        operators.append(Operator("back", reads, (made,), 30.0, Replay.NEVER, backward=True))
        gradient = made
    last_use = [min(last, len(operators)) for last in last_use]
    values = tuple(Value(number) for number in range(len(storages)))
    return OpGraph(tuple(storages), values, tuple(operators), tuple(last_use))


@pytest.mark.parametrize(
    ("graph", "share"),
    [
        *((chain(12), share) for share in (0.8, 0.6, 0.5)),
        *((network(3), share) for share in (0.9, 0.75)),
        *((network(5), share) for share in (0.9, 0.75)),
    ],
)
def test_the_default_planner_is_within_5_percent_on_networks(graph: OpGraph, share: float) -> None:
    budget = int(share * simulate(graph, Schedule()).peak_bytes)
    best = simulate(graph, plan_ilp(graph, budget)).recompute_us
    ours = simulate(graph, plan_offline(graph, budget)).recompute_us
    assert 0 < best - 1e-6 <= ours <= 1.05 * best


def test_the_default_planner_is_within_15_percent_on_average_on_random_graphs() -> None:
    ratios = []
    for seed in range(12):
        graph = random_graph(seed, num_operators=18)
        budget = int(0.8 * simulate(graph, Schedule()).peak_bytes)
        try:
            best = simulate(graph, plan_ilp(graph, budget)).recompute_us
        except BudgetTooSmallError:
            continue
        ours = simulate(graph, plan_offline(graph, budget)).recompute_us
        assert ours >= best - 1e-6
        ratios.append(ours / best if best else 1.0)
    assert len(ratios) >= 6
    assert sum(ratios) / len(ratios) < 1.15


def test_a_graph_too_large_to_solve_is_refused() -> None:
    graph = chain(MOST_VALUES + 3)
    with pytest.raises(MemoptError, match="values may be dropped, it solves graphs of at most"):
        plan_ilp(graph, 100)


def test_scipy_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        MemoptError, match=r"planner ilp needs scipy: pip install 'facetrain\[ilp\]'"
    ):
        plan_ilp(chain(6), 20)
