"""Plans against every subset of gaps on small graphs, and what a plan must keep on larger ones."""

from __future__ import annotations

import itertools
import math

import pytest

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.planners import find_planner, plan_offline
from memopt.schedule import Gap, Lives, Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import chain, random_graph


def _every_plan(graph: OpGraph) -> list[tuple[int, float]]:
    """Peak and time of every choice, for each gap, of no drop or one that ends at any operator."""
    choices: list[list[Gap | None]] = [
        [None, *(Gap(gap.value, gap.start, end) for end in range(gap.start + 2, gap.end + 1))]
        for gaps in Lives(graph).gaps
        for gap in gaps
    ]
    found = []
    for chosen in itertools.product(*choices):
        try:
            result = simulate(graph, Schedule(frozenset(gap for gap in chosen if gap is not None)))
        except MemoptError:
            continue
        found.append((result.peak_bytes, result.recompute_us))
    return found


def _num_plans(graph: OpGraph) -> int:
    return math.prod(gap.end - gap.start for gaps in Lives(graph).gaps for gap in gaps)


def test_plans_of_small_graphs_are_near_the_best_of_all() -> None:
    ratios, missed, cases = [], 0, 0
    for seed in range(150):
        graph = random_graph(seed, num_operators=9)
        if not 20 <= _num_plans(graph) <= 600:
            continue
        every = _every_plan(graph)
        for budget in sorted({peak for peak, _ in every})[:3]:
            best = min(time for peak, time in every if peak <= budget)
            cases += 1
            try:
                result = simulate(graph, plan_offline(graph, budget))
            except MemoptError:
                missed += 1
                continue
            assert result.peak_bytes <= budget
            assert result.recompute_us >= best - 1e-9
            if best:
                ratios.append(result.recompute_us / best)
    assert cases > 50
    assert missed <= 0.1 * cases
    assert sum(ratios) / len(ratios) < 1.05


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
def test_a_plan_of_a_chain_holds_its_budget(share: float) -> None:
    graph = chain(60)
    plain = simulate(graph, Schedule())
    budget = int(share * plain.peak_bytes)
    result = simulate(graph, plan_offline(graph, budget))
    assert result.peak_bytes <= budget
    # Each forward operator once more is what one level of recomputation may cost at most.
    assert result.recompute_us <= 60


def test_what_fits_is_left_alone() -> None:
    graph = chain(20)
    peak = simulate(graph, Schedule()).peak_bytes
    assert plan_offline(graph, peak) == Schedule()


def test_less_memory_never_costs_less_time_by_much_and_never_more_memory() -> None:
    graph = chain(40)
    peak = simulate(graph, Schedule()).peak_bytes
    results = []
    for share in (1.0, 0.8, 0.6, 0.4, 0.3):
        results.append(simulate(graph, plan_offline(graph, int(share * peak))))
    peaks = [result.peak_bytes for result in results]
    assert peaks == sorted(peaks, reverse=True)
    times = [result.recompute_us for result in results]
    assert times == sorted(times)


def test_a_budget_below_the_floor_names_the_least_found() -> None:
    graph = chain(20)
    with pytest.raises(MemoptError, match=r"budget 5B: the least found for this iteration is \d+B"):
        plan_offline(graph, 5)


def test_an_unknown_planner_names_the_known() -> None:
    with pytest.raises(MemoptError, match="planner 'magic' is unknown: use one of offline"):
        find_planner("magic")
    assert find_planner("offline") is plan_offline
