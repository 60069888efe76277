"""Plans against every plan there is on small graphs, and what a plan must keep on larger ones."""

from __future__ import annotations

import pytest

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.graph import OpGraph
from memopt.planners import PLANNERS, find_planner, plan_offline
from memopt.schedule import Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import chain, random_graph
from tests.memopt.planners.plans import small_graphs


def test_plans_of_small_graphs_are_near_the_best_of_all() -> None:
    ratios, missed, cases = [], 0, 0
    for graph, every in small_graphs(80):
        for budget in sorted({peak for peak, _ in every})[:3]:
            best = min(time for peak, time in every if peak <= budget)
            cases += 1
            try:
                result = simulate(graph, plan_offline(graph, budget))
            except BudgetTooSmallError:
                missed += 1
                continue
            assert result.peak_bytes <= budget
            assert result.recompute_us >= best - 1e-9
            if best:
                ratios.append(result.recompute_us / best)
    assert cases > 30
    # What is missed are the tightest budgets there are.
    assert missed <= 0.05 * cases
    assert sum(ratios) / len(ratios) < 1.01


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
def test_a_plan_of_a_chain_holds_its_budget(share: float) -> None:
    graph = chain(60)
    plain = simulate(graph, Schedule())
    budget = int(share * plain.peak_bytes)
    result = simulate(graph, plan_offline(graph, budget))
    assert result.peak_bytes <= budget
    # Each forward operator once more is what one level of recomputation may cost at most.
    assert result.recompute_us <= 60


def test_a_plan_of_a_chain_goes_as_low_as_segments_of_its_root() -> None:
    # Values of 10 bytes: 8 kept ones, 8 of one segment, and two gradients.
    graph = chain(64)
    result = simulate(graph, plan_offline(graph, 180))
    assert result.peak_bytes <= 180
    assert result.recompute_us <= 64


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_what_fits_is_left_alone(name: str) -> None:
    if name == "ilp":
        pytest.importorskip("scipy", reason="the planner ilp needs scipy")
    graph = chain(20)
    peak = simulate(graph, Schedule()).peak_bytes
    assert find_planner(name)(graph, peak) == Schedule()


def test_the_same_plan_comes_out_each_time() -> None:
    graph = random_graph(3, num_operators=40)
    budget = int(0.8 * simulate(graph, Schedule()).peak_bytes)
    assert plan_offline(graph, budget) == plan_offline(graph, budget)


@pytest.mark.parametrize("graph", [chain(20), random_graph(11, num_operators=40)])
def test_a_budget_below_the_floor_names_the_least_found(graph: OpGraph) -> None:
    with pytest.raises(
        BudgetTooSmallError, match=r"budget 5B: the least found for this iteration is \d+B"
    ) as failed:
        plan_offline(graph, 5)
    least = failed.value.least_bytes
    assert simulate(graph, plan_offline(graph, least)).peak_bytes == least
    with pytest.raises(BudgetTooSmallError):
        plan_offline(graph, least - 1)


def test_an_unknown_planner_names_the_known() -> None:
    with pytest.raises(
        MemoptError, match="planner 'magic' is unknown: use one of ilp, offline, sublinear"
    ):
        find_planner("magic")
    assert find_planner("offline") is plan_offline
