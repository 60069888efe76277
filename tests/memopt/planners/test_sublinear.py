"""Segments of a chain counted by hand, and what the planner refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.planners.sublinear import cut_values, plan_sublinear
from memopt.schedule import Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import chain, random_graph


def test_every_value_of_a_chain_but_the_last_is_a_cut() -> None:
    # The last is read by no forward operator.
    assert cut_values(chain(9)) == list(range(1, 9))


def test_a_value_read_across_blocks_is_no_cut() -> None:
    graph = chain(9)
    operators = list(graph.operators)
    operators[6] = replace(operators[6], reads=(2, 6))  # a skip connection over values 3 to 6
    assert cut_values(replace(graph, operators=tuple(operators))) == [1, 2, 7, 8]


def test_segments_are_made_again_at_once_before_their_backward_pass() -> None:
    graph = chain(9)
    # 9 values of 10 bytes and two gradients; three segments of three: kept are values 3 and 6.
    schedule = plan_sublinear(graph, 80)
    ends = {gap.value: gap.end for gap in schedule.drops}
    assert ends == {1: 16, 2: 16, 4: 13, 5: 13}
    assert all(gap.start == gap.value for gap in schedule.drops)
    result = simulate(graph, schedule)
    assert result.recompute_us == 4
    assert result.peak_bytes <= 80


def test_the_cheapest_number_of_segments_is_taken() -> None:
    graph = chain(64)
    peak = simulate(graph, Schedule()).peak_bytes
    times = []
    for share in (0.9, 0.7, 0.5, 0.3):
        result = simulate(graph, plan_sublinear(graph, int(share * peak)))
        assert result.peak_bytes <= share * peak
        assert result.recompute_us <= 64
        times.append(result.recompute_us)
    assert times == sorted(times)


def test_the_least_is_about_two_roots_of_the_length() -> None:
    graph = chain(100)
    with pytest.raises(BudgetTooSmallError, match="use planner offline") as failed:
        plan_sublinear(graph, 5)
    # Ten kept values, ten of one segment, and gradients; 10 bytes each.
    assert failed.value.least_bytes <= 10 * 2 * 10 + 20
    assert simulate(graph, plan_sublinear(graph, failed.value.least_bytes)).recompute_us > 0


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_keep_the_budget_or_say_so(seed: int) -> None:
    graph = random_graph(seed, num_operators=40)
    half = tuple(replace(op, backward=n >= 20) for n, op in enumerate(graph.operators))
    graph = replace(graph, operators=half)
    budget = int(0.9 * simulate(graph, Schedule()).peak_bytes)
    try:
        schedule = plan_sublinear(graph, budget)
    except BudgetTooSmallError as error:
        budget = error.least_bytes
        schedule = plan_sublinear(graph, budget)
    assert simulate(graph, schedule).peak_bytes <= budget


def test_a_graph_without_backward_operators_is_refused() -> None:
    with pytest.raises(MemoptError, match="no operator of this graph is marked as backward"):
        plan_sublinear(random_graph(0, num_operators=20), 5)
