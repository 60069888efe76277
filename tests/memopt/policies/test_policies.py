"""Each policy's choice against its formula, derived again from what the graph and memory hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memopt.arena import Arena, Side
from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Storage, Value
from memopt.policies import POLICIES, Policy, State, find_policy
from memopt.policies.neighbourhood import ExactNeighbourhood
from memopt.replay import Outcome, replay
from tests.memopt.symbolic_memory import random_graph


def evicted_neighbourhood_us(state: State, value: int) -> float:
    """Own cost, and of what is reached up or down through evicted values; operators once."""
    makers = {state.maker[value]: float(state.cost_us[value])}

    def walk(at: int, links: Callable[[int], list[int]], seen: set[int]) -> None:
        for other in links(at):
            if other not in seen and state.is_evicted(other):
                seen.add(other)
                makers[state.maker[other]] = float(state.cost_us[other])
                walk(other, links, seen)

    walk(value, lambda at: list(state.parents[at]), set())
    walk(value, lambda at: [c for c, p in enumerate(state.parents) if at in p], set())
    return sum(makers.values())


def evicted_components(state: State) -> list[set[int]]:
    """Connected evicted values."""
    left = {value for value in range(len(state.parents)) if state.is_evicted(value)}
    components = []
    while left:
        component, frontier = set(), {left.pop()}
        while frontier:
            at = frontier.pop()
            component.add(at)
            beside = {other for other in left if other in state.parents[at]}
            beside |= {other for other in left if at in state.parents[other]}
            left -= beside
            frontier |= beside
        components.append(component)
    return components


def staleness_us(state: State, value: int) -> float:
    return max(state.clock_us - float(state.last_access_us[value]), 1e-3)


def expected_dtr(state: State, needed_bytes: int) -> dict[int, float]:
    return {
        value: evicted_neighbourhood_us(state, value)
        / (state.size_bytes[value] * staleness_us(state, value))
        for value in state.candidates
    }


def expected_coop(state: State, needed_bytes: int) -> float | None:
    """Least score of all runs of blocks that make room, tried one by one."""
    (segment,) = [list(blocks) for blocks in state.arena.segments()]
    scores: list[float | None] = []
    for block in segment:
        value = state.value_of.get(block)
        if block.is_free:
            scores.append(0.0)
        elif value is not None and value in state.candidates:
            cost_us = evicted_neighbourhood_us(state, value)
            scores.append(cost_us / staleness_us(state, value))
        else:
            scores.append(None)
    best = None
    for start in range(len(segment)):
        length, score = 0, 0.0
        for block, own in zip(segment[start:], scores[start:], strict=True):
            if own is None:
                break
            length += block.size_bytes
            score += own
            if length >= needed_bytes:
                best = score if best is None else min(best, score)
                break
    return best


def watched(name: str, check: Callable[[State, int, list[int]], None]) -> Callable[[State], Policy]:
    """The policy, with every choice checked."""

    class Watched:
        def __init__(self, state: State) -> None:
            self._state = state
            self._policy = POLICIES[name](state)

        def choose(self, needed_bytes: int) -> list[int]:
            chosen = list(self._policy.choose(needed_bytes))
            assert set(chosen) <= self._state.candidates
            check(self._state, needed_bytes, chosen)
            return chosen

        def residency_changed(self, value: int) -> None:
            self._policy.residency_changed(value)

        def side(self, value: int) -> Side:
            return self._policy.side(value)

    return Watched


def run_all(policy: Callable[[State], Policy]) -> None:
    for seed in range(60):
        graph = random_graph(seed)
        for share in (0.6, 0.9):
            replay(graph, policy, Arena(max(1, int(graph.plain_peak_bytes() * share))))


def test_dtr_takes_the_least_h_with_its_own_cost() -> None:
    num_choices = 0

    def check(state: State, needed_bytes: int, chosen: list[int]) -> None:
        nonlocal num_choices
        scores = expected_dtr(state, needed_bytes)
        assert bool(chosen) == bool(scores)
        if chosen:
            num_choices += 1
            assert scores[chosen[0]] == pytest.approx(min(scores.values()), rel=1e-9)

    run_all(watched("dtr", check))
    assert num_choices > 200


def test_coop_takes_the_cheapest_run_of_addresses() -> None:
    num_choices = 0

    def check(state: State, needed_bytes: int, chosen: list[int]) -> None:
        nonlocal num_choices
        best = expected_coop(state, needed_bytes)
        assert bool(chosen) == bool(state.candidates)
        if best is None:
            assert len(chosen) <= 1
        else:
            num_choices += 1
            score = sum(
                evicted_neighbourhood_us(state, value) / staleness_us(state, value)
                for value in chosen
            )
            assert score == pytest.approx(best, rel=1e-9, abs=1e-9)
            offsets = sorted(
                (block.offset_bytes, block.end_bytes)
                for value in chosen
                if (block := state.blocks[value]) is not None
            )
            (segment,) = [list(blocks) for blocks in state.arena.segments()]
            inside = [b for b in segment if offsets[0][0] <= b.offset_bytes < offsets[-1][1]]
            assert all(b.is_free or state.value_of[b] in chosen for b in inside)

    run_all(watched("coop", check))
    assert num_choices > 100


@pytest.mark.parametrize("name", ["dtr_eq", "dte"])
def test_union_find_scores_are_exact_while_nothing_was_made_again(name: str) -> None:
    """Before the first recomputation a class is a connected set; splits are approximate."""
    num_choices = 0

    def check(state: State, needed_bytes: int, chosen: list[int]) -> None:
        nonlocal num_choices
        if not chosen or state.num_recomputes.any():
            return
        num_choices += 1
        components = evicted_components(state)
        scores = {}
        for value in state.candidates:
            near = set(state.evicted_neighbours(value))
            cost_us = float(state.cost_us[value]) + sum(
                float(state.cost_us[other])
                for component in components
                if component & near
                for other in component
            )
            block = state.blocks[value]
            assert block is not None
            room = int(state.size_bytes[value]) + (sum(block.free_beside()) if name == "dte" else 0)
            scores[value] = cost_us / (room * staleness_us(state, value))
        assert scores[chosen[0]] == pytest.approx(min(scores.values()), rel=1e-9)

    run_all(watched(name, check))
    assert num_choices > 100


def test_dte_spares_what_was_made_again_often() -> None:
    """Two values alike in all but how often they were recomputed."""
    graph = OpGraph(
        tuple(Storage(4) for _ in range(2)),
        tuple(Value(n) for n in range(2)),
        (Operator("a", (), (0,), 1.0), Operator("b", (), (1,), 1.0)),
        (2, 2),
    )
    state = State.of(graph, Arena(8))
    for value in range(2):
        state.blocks[value] = state.arena.allocate(4)
        state.is_made[value] = state.is_resident[value] = True
        state.candidates.add(value)
    state.clock_us = 5.0
    policy = POLICIES["dte"](state)
    assert policy.choose(1) == (0,)
    state.num_recomputes[0] = 3
    assert policy.choose(1) == (1,)


def test_dte_counts_recomputes_in_a_replay() -> None:
    most = 0

    def check(state: State, needed_bytes: int, chosen: list[int]) -> None:
        nonlocal most
        most = max(most, int(state.num_recomputes.max()))

    run_all(watched("dte", check))
    assert most > 1


def test_a_neighbourhood_kept_equals_one_made_anew() -> None:
    """After every change of residency, of every value that is there."""

    class Checked:
        def __init__(self, state: State) -> None:
            self._state = state
            self._policy = POLICIES["dtr"](state)
            self._kept = ExactNeighbourhood(state)

        def choose(self, needed_bytes: int) -> list[int]:
            values = self._state.ordered_candidates()
            for value, cost_us in zip(values, self._kept.costs_us(values), strict=True):
                assert cost_us == pytest.approx(evicted_neighbourhood_us(self._state, int(value)))
            return list(self._policy.choose(needed_bytes))

        def residency_changed(self, value: int) -> None:
            self._kept.residency_changed(value)
            self._policy.residency_changed(value)

        def side(self, value: int) -> Side:
            return Side.BEST

    run_all(Checked)


def test_coop_keeps_cheap_and_costly_values_apart() -> None:
    """Cheap ones from the low end, costly ones from the high end of memory."""
    sizes, costs = (4, 4, 4, 4), (1.0, 9.0, 1.0, 9.0)
    graph = OpGraph(
        tuple(Storage(size) for size in sizes),
        tuple(Value(n) for n in range(4)),
        tuple(Operator(f"o{n}", (), (n,), cost) for n, cost in enumerate(costs)),
        (4, 4, 4, 4),
    )
    arena = Arena(32)
    result = replay(graph, POLICIES["coop"], arena)
    assert result.outcome is Outcome.DONE
    (segment,) = [list(blocks) for blocks in arena.segments()]
    assert [(b.size_bytes, b.is_free) for b in segment] == [
        *((4, False), (4, False)),
        (16, True),
        *((4, False), (4, False)),
    ]


def test_an_unknown_policy_lists_the_known() -> None:
    assert find_policy("dte") is POLICIES["dte"]
    with pytest.raises(MemoptError, match="'lru' is not known; known: dtr, dtr_eq, dte, coop"):
        find_policy("lru")
