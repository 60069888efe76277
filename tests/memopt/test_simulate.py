"""The simulator against an executor that holds symbols in a dictionary and counts them."""

from __future__ import annotations

import random

import pytest

from memopt.errors import MemoptError
from memopt.graph import OpGraph, Role
from memopt.schedule import Gap, Lives, Schedule
from memopt.simulate import ScheduleState, simulate
from tests.memopt.graphs import chain, random_graph


def execute(graph: OpGraph, schedule: Schedule) -> tuple[int, float]:
    """Peak bytes and recompute time, by running every operator on symbols.

    A value's symbol names its maker and the symbols it read: a wrong recomputation gives another.
    """
    lives = Lives(graph)
    storage_of = [value.storage for value in graph.values]
    resting = {n for n, s in enumerate(graph.storages) if s.role is Role.RESTING}
    symbols: dict[int, object] = {}
    held: dict[int, object] = {
        number: ("resting", number)
        for number in range(len(graph.values))
        if lives.maker[number] < 0
    }
    peak, time_us = 0, 0.0

    def count() -> int:
        """Two versions of one storage are two copies, unless one was written over the other."""
        return sum(lives.size_bytes[v] for v in held if storage_of[v] not in resting)

    def run(number: int) -> None:
        nonlocal peak
        operator = graph.operators[number]
        inputs = tuple(held[read] for read in operator.reads)
        # An operator run again makes all its outputs, also one that is still there.
        twice = sum(lives.size_bytes[value] for value in operator.makes if value in held)
        for value in operator.makes:
            for read in operator.reads:
                if storage_of[read] == storage_of[value]:
                    held.pop(read)  # written over
            held[value] = (number, operator.makes.index(value), inputs)
            assert symbols.setdefault(value, held[value]) == held[value]
        peak = max(peak, count() + twice + operator.workspace_bytes)

    def dead(value: int, moment: int) -> bool:
        if storage_of[value] in resting:
            return False
        if lives.may_drop(value):
            return lives.last_use(value) <= moment
        return graph.last_use[storage_of[value]] <= moment

    def remake(targets: list[int]) -> None:
        nonlocal time_us
        needed: list[int] = []

        def need(value: int) -> None:
            if value in held or value in needed:
                return
            for read in graph.operators[lives.maker[value]].reads:
                need(read)
            needed.append(value)

        for target in targets:
            need(target)
        makers = sorted({lives.maker[value] for value in needed})
        for place, number in enumerate(makers):
            before = set(held)
            run(number)
            time_us += graph.operators[number].cost_us
            for value in set(held) - before | set(graph.operators[number].reads) & set(held):
                later = any(value in graph.operators[m].reads for m in makers[place + 1 :])
                if (value in needed or value not in before) and value not in targets and not later:
                    held.pop(value)

    for number, operator in enumerate(graph.operators):
        targets = [gap.value for gap in schedule.drops if gap.end == number]
        assert set(operator.reads) <= {*held, *targets}
        if targets:
            remake(targets)
        run(number)
        for value in [v for v in held if dead(v, number)]:
            held.pop(value)
        for gap in schedule.drops:
            if gap.start == number:
                held.pop(gap.value, None)
    return peak, time_us


def _all_gaps(graph: OpGraph) -> list[Gap]:
    return [gap for gaps in Lives(graph).gaps for gap in gaps]


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_costs_what_running_it_counts(seed: int, controlled: bool) -> None:
    graph = random_graph(seed, num_operators=14, controlled=controlled)
    draw = random.Random(seed)
    state = ScheduleState(graph)
    for gap in _all_gaps(graph):
        ends = [m for m in range(gap.start + 2, gap.end + 1) if state.lives.recomputes_at(m)]
        if draw.random() < 0.5:
            state.drop(gap._replace(end=draw.choice((gap.end, draw.choice(ends)))))
    schedule = state.schedule()
    peak, time_us = execute(graph, schedule)
    memory = state.memory_bytes()
    assert int(memory.max()) == peak
    assert state.recompute_us == pytest.approx(time_us)
    again = simulate(graph, schedule)
    assert (again.memory_bytes == memory).all()
    assert again.recompute_us == pytest.approx(time_us)


@pytest.mark.parametrize("seed", range(40))
def test_taking_drops_back_restores_what_was(seed: int) -> None:
    graph = random_graph(seed, controlled=bool(seed % 2))
    draw = random.Random(seed)
    state = ScheduleState(graph)
    gaps = _all_gaps(graph)
    marks = [(0, state.memory_bytes(), 0.0)]
    for _ in range(60):
        gap = draw.choice(gaps) if gaps else None
        if gap is not None:
            (state.keep if state.is_dropped(gap) else state.drop)(gap)
            marks.append((state.num_steps, state.memory_bytes(), state.recompute_us))
    fresh = simulate(graph, state.schedule())
    assert (fresh.memory_bytes == state.memory_bytes()).all()
    assert fresh.recompute_us == pytest.approx(state.recompute_us)
    for num_steps, memory_bytes, recompute_us in reversed(marks):
        while state.num_steps > num_steps:
            state.undo()
        assert (state.memory_bytes() == memory_bytes).all()
        assert state.recompute_us == recompute_us
    assert not state.schedule().drops


@pytest.mark.parametrize("seed", range(40))
def test_the_time_a_drop_adds_is_known_before(seed: int) -> None:
    graph = random_graph(seed, num_operators=16, controlled=bool(seed % 2))
    draw = random.Random(seed)
    state = ScheduleState(graph)
    for gap in sorted(_all_gaps(graph), key=lambda _: draw.random()):
        time_us, added_us = state.recompute_us, state.added_us(gap, set())
        part_us = state.added_us(gap, set(), enough_us=2.0)
        assert part_us == added_us or 2.0 <= part_us <= added_us
        assert state.drop(gap) == (added_us < float("inf"))
        if state.is_dropped(gap):
            assert state.recompute_us - time_us == pytest.approx(added_us)
            if draw.random() < 0.3:
                state.undo()


@pytest.mark.parametrize("seed", range(20))
def test_changes_name_all_whose_price_is_another(seed: int) -> None:
    graph = random_graph(seed, num_operators=20)
    draw = random.Random(seed)
    state = ScheduleState(graph)
    gaps = _all_gaps(graph)
    prices: dict[Gap, tuple[float, set[int]]] = {}
    for _ in range(30):
        changes = state.take_changes()
        for gap in gaps:
            if state.is_dropped(gap):
                prices.pop(gap, None)
                continue
            seen: set[int] = {gap.value}
            now_us = state.added_us(gap, seen)
            old = prices.get(gap)
            if old is not None and old[0] != now_us:
                assert (
                    gap.value in changes.disturbed
                    or gap.end in changes.moments
                    or old[1] & changes.values
                )
            prices[gap] = now_us, seen
        for _ in range(3):
            gap = draw.choice(gaps)
            if draw.random() < 0.3 and state.num_steps:
                state.undo()
            else:
                (state.keep if state.is_dropped(gap) else state.drop)(gap)


def test_a_chain_holds_one_value_where_all_are_dropped() -> None:
    graph = chain(6)
    gaps = _all_gaps(graph)
    result = simulate(graph, Schedule(frozenset(gaps)))
    # Before the backward operator of value n, operators 1 to n run again.
    assert result.recompute_us == sum(range(1, 6))
    assert simulate(graph, Schedule()).peak_bytes > result.peak_bytes


def test_two_thousand_operators_deep_is_no_recursion() -> None:
    graph = chain(2000)
    state = ScheduleState(graph)
    for gap in _all_gaps(graph)[-3:]:
        assert state.drop(gap)
    gaps = Lives(graph).gaps
    state = ScheduleState(graph)
    for value in range(2, 2000):
        assert state.drop(gaps[value][0])
        if value > 30:
            break
    assert state.recompute_us > 0


def test_a_drop_that_cannot_be_made_good_is_an_error() -> None:
    found = 0
    for seed in range(200):
        graph = random_graph(seed)
        for gap in _all_gaps(graph):
            if not ScheduleState(graph).drop(gap):
                found += 1
                with pytest.raises(MemoptError, match="cannot be recomputed before operator"):
                    simulate(graph, Schedule(frozenset([gap])))
    assert found
