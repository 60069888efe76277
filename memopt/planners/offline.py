"""The default planner: drops whole gaps, each by what it really changes.

While the peak is above the budget, the gaps that cover its moment are ranked by a quick score, the
best of them are tried, and the one is dropped that removes the most excess for the time it adds:

    excess = sum over operators of max(0, memory - budget)
    score  = (bytes of the gap)^a * (operators above the budget in it) / its quick cost

Trying means simulating: the chains of other drops that read the value change with it, which a
score of the value alone does not see (a hub that many recomputations need looks cheap). Then drops
are taken back, dearest first, while the peak still fits, and values that a chain makes on its way
are kept from there on. That is done for several a; in the cheapest plan drops are then exchanged
for others where that saves time.

A budget is planned by way of the budgets above it no better than directly, so plans are made
independently; a smaller budget never needs more memory, since each plan's peak is within its own.
"""

from __future__ import annotations

import heapq

import numpy as np

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.schedule import Gap, Schedule
from memopt.simulate import ScheduleState
from memopt.units import format_bytes

_EXPONENTS = (1.0, 0.5)
_TRIED = 12
_SMALLEST_COST_US = 1e-3


def plan_offline(graph: OpGraph, budget_bytes: int) -> Schedule:
    """The cheapest schedule found whose peak is within the budget.

    Raises:
        MemoptError: none was found; names the least peak that was reached.
    """
    best: ScheduleState | None = None
    least: int | None = None
    for exponent in _EXPONENTS:
        state = ScheduleState(graph)
        peak = _drop_until_fits(state, budget_bytes, exponent)
        if peak > budget_bytes:
            least = peak if least is None else min(least, peak)
            continue
        _take_back(state, budget_bytes)
        if best is None or state.recompute_us < best.recompute_us:
            best = state
    if best is None:
        assert least is not None
        raise MemoptError(
            f"budget {format_bytes(budget_bytes)}: the least found for this iteration is "
            f"{format_bytes(least, round_up=True)}"
        )
    _exchange(best, budget_bytes)
    return best.schedule()


def _drop_until_fits(state: ScheduleState, budget_bytes: int, exponent: float) -> int:
    """Drop gaps until the peak fits or nothing helps; the least peak reached."""
    gaps = [gap for gaps in state.lives.gaps for gap in gaps]
    starts = np.array([gap.start for gap in gaps])
    ends = np.array([gap.end for gap in gaps])
    sizes = np.array([state.lives.size_bytes[gap.value] for gap in gaps], dtype=np.float64)
    open_gaps = sizes > 0
    least = int(state.memory_bytes().max(initial=0))
    while True:
        memory = state.memory_bytes()
        moment = int(memory.argmax()) if len(memory) else 0
        peak = int(memory[moment]) if len(memory) else 0
        least = min(least, peak)
        if peak <= budget_bytes:
            return peak
        above = np.concatenate([[0], np.cumsum(memory > budget_bytes)])
        covers = open_gaps & (starts < moment) & (moment < ends)
        candidates = np.flatnonzero(covers)
        covered = above[ends[candidates]] - above[starts[candidates] + 1]
        costs = np.array([state.quick_cost_us(gaps[number]) for number in candidates])
        costs = np.maximum(costs, _SMALLEST_COST_US)
        scores = sizes[candidates] ** exponent * covered / costs
        tried = heapq.nlargest(_TRIED, zip(scores, candidates, strict=True))
        chosen = _best_of(state, [gaps[number] for _, number in tried], budget_bytes, moment)
        if chosen is None:
            if not tried:
                return least
            for _, number in tried:
                open_gaps[number] = False
            continue
        place, gap = chosen
        state.drop(gap)
        open_gaps[tried[place][1]] = False


def _best_of(
    state: ScheduleState, gaps: list[Gap], budget_bytes: int, moment: int
) -> tuple[int, Gap] | None:
    """What removes the most excess for the time it adds: number of a gap, and where it ends.

    None where nothing removes any. A drop may end early, but after the moment.
    """
    excess = _excess(state, budget_bytes)
    time_us = state.recompute_us
    best: tuple[float, int, Gap] | None = None
    for number, whole in enumerate(gaps):
        ends = [whole.end, *(end for end in state.early_ends(whole) if end > moment)]
        for gap in (Gap(whole.value, whole.start, end) for end in ends):
            if not state.drop(gap):
                continue
            removed = excess - _excess(state, budget_bytes)
            added_us = max(state.recompute_us - time_us, _SMALLEST_COST_US)
            state.keep(gap)
            if removed > 0 and (best is None or removed / added_us > best[0]):
                best = removed / added_us, number, gap
    return None if best is None else best[1:]


def _excess(state: ScheduleState, budget_bytes: int) -> int:
    return int(np.maximum(state.memory_bytes() - budget_bytes, 0).sum())


def _take_back(state: ScheduleState, budget_bytes: int) -> None:
    """Keep what need not be dropped, dearest first, and what chains make on their way."""
    for gap in sorted(state.schedule().drops, key=state.quick_cost_us, reverse=True):
        time_us = state.recompute_us
        if state.keep(gap) and not _pays(state, budget_bytes, time_us):
            state.drop(gap)
    improved = True
    while improved:
        improved = False
        for gap in sorted(state.schedule().drops, key=lambda gap: (gap.end, gap.value)):
            for moment in state.early_ends(gap):
                time_us = state.recompute_us
                shorter = state.end_early(gap, moment)
                if shorter is None:
                    continue
                if _pays(state, budget_bytes, time_us):
                    improved = True
                    break
                state.keep(shorter)
                state.drop(gap)


def _pays(state: ScheduleState, budget_bytes: int, time_us: float) -> bool:
    """Whether the schedule fits and takes less time than before."""
    return state.recompute_us < time_us and int(state.memory_bytes().max()) <= budget_bytes


def _exchange(state: ScheduleState, budget_bytes: int) -> None:
    """Swap a drop for another, dearest first, where the plan still fits and takes less time."""
    gaps = [gap for gaps in state.lives.gaps for gap in gaps]
    for gap in sorted(state.schedule().drops, key=state.quick_cost_us, reverse=True):
        time_us = state.recompute_us
        if not state.is_dropped(gap) or not state.keep(gap):
            continue
        moment = int(state.memory_bytes().argmax())
        others = [
            other
            for other in gaps
            if other.start < moment < other.end
            and other.value != gap.value
            and not any(drop.start == other.start for drop in state.drops_of(other.value))
        ]
        others = heapq.nsmallest(_TRIED, others, key=state.quick_cost_us)
        if not any(_drop_if_it_pays(state, other, budget_bytes, time_us) for other in others):
            state.drop(gap)
    _take_back(state, budget_bytes)


def _drop_if_it_pays(state: ScheduleState, gap: Gap, budget_bytes: int, time_us: float) -> bool:
    """Drop a gap if the plan then fits and takes less than `time_us`; whether it was."""
    if not state.drop(gap):
        return False
    if _pays(state, budget_bytes, time_us):
        return True
    state.keep(gap)
    return False
