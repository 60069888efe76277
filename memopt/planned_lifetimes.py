"""When each piece of memory of a planned iteration is needed, recomputations included.

Time has a place for each operator and, before it, one for each operator that is run again there. A
storage whose value is dropped is several pieces; what a chain makes on its way is pieces too.
"""

from __future__ import annotations

from memopt.graph import OpGraph, Role, first_made
from memopt.placement import Lifetime
from memopt.schedule import Gap, Lives, Schedule


def planned_lifetimes(graph: OpGraph, schedule: Schedule) -> list[Lifetime]:
    """Pieces of memory of an iteration under a schedule, for `memopt.placement.place`."""
    lives = Lives(graph)
    dropped: dict[int, set[Gap]] = {}
    targets: dict[int, list[int]] = {}
    for gap in schedule.drops:
        dropped.setdefault(gap.value, set()).add(gap)
        targets.setdefault(gap.end, []).append(gap.value)
    now = 0
    at: list[int] = []  # of each operator
    again: dict[int, dict[int, int]] = {}  # of what is run again before it
    for moment in range(len(graph.operators)):
        if moment in targets:
            chain = lives.chain(moment, targets[moment], dropped)
            assert chain is not None, "a schedule that simulates"
            again[moment] = {number: now + place for place, number in enumerate(chain.operators)}
            now += len(chain.operators)
        at.append(now)
        now += 1

    found: list[Lifetime] = []
    values: dict[int, list[int]] = {}
    for number, value in enumerate(graph.values):
        values.setdefault(value.storage, []).append(number)
    begun: dict[tuple[int, int], int] = {}  # when a storage is made again, by its chain
    for moment, steps in again.items():
        last_read = {read: time for op, time in steps.items() for read in graph.operators[op].reads}
        ends: dict[int, int] = {}
        for operator, time in steps.items():
            for made in graph.operators[operator].makes:
                storage = graph.values[made].storage
                if graph.storages[storage].role is Role.RESTING:
                    continue
                begun.setdefault((moment, storage), time)
                is_kept = made in targets[moment] or lives.there(
                    made, moment, dropped.get(made, ())
                )
                ends[storage] = -1 if is_kept else max(time, last_read.get(made, time))
        for storage, end in ends.items():
            if end >= 0:
                size = graph.storages[storage].size_bytes
                found.append(Lifetime(begun[moment, storage], end, size))
    for storage, first in enumerate(first_made(graph)):
        held = graph.storages[storage]
        if first is None or held.role is Role.RESTING:
            continue
        last = max(
            first,
            *(
                lives.last_use(value) if lives.may_drop(value) else graph.last_use[storage]
                for value in values[storage]
            ),
        )
        start = at[first]
        gaps = sorted(gap for value in values[storage] for gap in dropped.get(value, ()))
        for gap in sorted(gaps, key=lambda gap: gap.start):
            found.append(Lifetime(start, max(start, at[gap.start]), held.size_bytes))
            start = begun[gap.end, storage]
        found.append(Lifetime(start, max(start, at[min(last, len(at) - 1)]), held.size_bytes))
    return found
