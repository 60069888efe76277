"""Checkpoints between segments (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").

A cut is a value that is all the later part of the forward pass reads of the earlier one. The pass
is cut into segments of about equal bytes; the values at the cuts are kept, and everything else of
all but the last segment is dropped, and made again at once before the backward pass of its segment.
Of all numbers of segments, sqrt(n) of n cuts among them, the one is taken that fits the budget in
the least time.
"""

from __future__ import annotations

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.graph import OpGraph
from memopt.schedule import Gap, Lives, Schedule
from memopt.simulate import ScheduleState
from memopt.units import format_bytes


def plan_sublinear(graph: OpGraph, budget_bytes: int) -> Schedule:
    """The cheapest choice of segments that fits the budget.

    Raises:
        BudgetTooSmallError: none does; names the least peak of all.
        MemoptError: the graph does not say which operators are of the backward pass.
    """
    state = ScheduleState(graph)
    least = int(state.memory_bytes().max(initial=0))
    if least <= budget_bytes:
        return Schedule()
    num_forward = sum(not operator.backward for operator in graph.operators)
    if num_forward == len(graph.operators):
        raise MemoptError(
            "planner sublinear: no operator of this graph is marked as backward: use another "
            "planner"
        )
    cuts = cut_values(graph)
    best: tuple[float, Schedule] | None = None
    ways = {_spread(state.lives, cuts, number): None for number in range(2, len(cuts) + 2)}
    for chosen in ways:
        _drop_segments(state, chosen, num_forward)
        peak = int(state.memory_bytes().max(initial=0))
        least = min(least, peak)
        if peak <= budget_bytes and (best is None or state.recompute_us < best[0]):
            best = state.recompute_us, state.schedule()
        while state.num_steps:
            state.undo()
    if best is None:
        raise BudgetTooSmallError(
            f"budget {format_bytes(budget_bytes)}: the least of {len(ways)} ways to cut the "
            f"forward pass into segments is {format_bytes(least, round_up=True)}: use planner "
            "offline",
            least,
        )
    return best[1]


def cut_values(graph: OpGraph) -> list[int]:
    """Values that, once made, are all that later forward operators read of what may be dropped."""
    lives = Lives(graph)
    last_read: dict[int, int] = {}
    for number, operator in enumerate(graph.operators):
        if operator.backward:
            break
        for value in operator.makes:
            if lives.may_drop(value) and lives.size_bytes[value]:
                last_read[value] = number
        for value in operator.reads:
            if value in last_read:
                last_read[value] = number
    crossing = [0] * (len(graph.operators) + 1)
    for value, last in last_read.items():
        for number in range(lives.maker[value], last):
            crossing[number] += 1
    return [
        value
        for value, last in last_read.items()
        if last > lives.maker[value] and crossing[lives.maker[value]] == 1
    ]


def _spread(lives: Lives, cuts: list[int], num_segments: int) -> tuple[int, ...]:
    """Cuts that leave about equal bytes between them, less than `num_segments` of them."""
    made = [0] * len(lives.graph.operators)
    for value, gaps in enumerate(lives.gaps):
        if gaps:
            made[lives.maker[value]] += lives.size_bytes[value]
    each, chosen, since, start = sum(made) / num_segments, list[int](), 0, 0
    for cut in cuts:
        since += sum(made[start : lives.maker[cut] + 1])
        start = lives.maker[cut] + 1
        if since >= each:
            chosen.append(cut)
            since = 0
    return tuple(chosen)


def _drop_segments(state: ScheduleState, cuts: tuple[int, ...], num_forward: int) -> None:
    """Drop all but the last segment, each up to where its backward pass begins."""
    lives, start = state.lives, 0
    into_backward = [
        gap for gaps in lives.gaps for gap in gaps if gap.start < num_forward <= gap.end
    ]
    for cut in cuts:
        end = lives.maker[cut] + 1
        dropped = [
            gap
            for gap in into_backward
            if start <= lives.maker[gap.value] < end and gap.value != cut
        ]
        start = end
        first_end = min((gap.end for gap in dropped), default=0)
        for gap in dropped:
            if gap.start + 1 < first_end:
                state.drop(Gap(gap.value, gap.start, first_end))
