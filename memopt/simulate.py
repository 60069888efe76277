"""What a schedule costs: memory while each operator runs, and time of recomputation.

`ScheduleState` keeps both up to date while gaps are dropped and taken back one by one: a change
touches the memory of its gap, the chain at its end, and the chains within it that read the value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from memopt.errors import MemoptError
from memopt.graph import OpGraph, Role, first_made
from memopt.schedule import Gap, Lives, QuickChain, Schedule

_NOTHING: frozenset[int] = frozenset()
_NONE = np.iinfo(np.int64).min // 2


@dataclass(frozen=True)
class Simulation:
    """A schedule's cost.

    Attributes:
        memory_bytes: the most while each operator, and what is recomputed before it, runs.
        peak_bytes: the largest of them.
        recompute_us: time of all recomputations.
    """

    memory_bytes: np.ndarray
    peak_bytes: int
    recompute_us: float


def simulate(graph: OpGraph, schedule: Schedule) -> Simulation:
    """Cost of a schedule.

    Raises:
        MemoptError: a value cannot be recomputed where it is needed.
    """
    state = ScheduleState(graph)
    for gap in sorted(schedule.drops, key=lambda gap: (gap.start, gap.value)):
        if not state.drop(gap):
            raise MemoptError(
                f"value {gap.value} cannot be recomputed before operator {gap.end}: what its "
                "maker reads is gone by then"
            )
    memory = state.memory_bytes()
    return Simulation(memory, int(memory.max(initial=0)), state.recompute_us)


class Step(NamedTuple):
    """A drop, or the end of one.

    Attributes:
        gap: what is dropped or kept.
        is_drop: which of the two.
        before: operators before which something else is recomputed than before, with what it was.
        after: what it is now, in the same order.
        time_us: of all recomputations before the step.
    """

    gap: Gap
    is_drop: bool
    before: list[tuple[int, QuickChain | None]]
    after: list[QuickChain | None]
    time_us: float


@dataclass
class Changes:
    """What steps have changed.

    Attributes:
        values: dropped or kept.
        moments: operators before which something else is recomputed than before.
        disturbed: values that these recomputations read or made, before or after.
    """

    values: set[int] = field(default_factory=set)
    moments: set[int] = field(default_factory=set)
    disturbed: set[int] = field(default_factory=set)


class ScheduleState:
    """A schedule under construction.

    Attributes:
        lives: of the graph's values.
        recompute_us: time of all recomputations so far.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.lives = Lives(graph)
        self.recompute_us = 0.0
        count = len(graph.operators)
        self._alive = self._plain_bytes()
        self._workspace = np.array([op.workspace_bytes for op in graph.operators], dtype=np.int64)
        # Not there while a chain runs before an operator: what that makes, and the chain's targets.
        self._absent = np.zeros(count, dtype=np.int64)
        for storage, first in enumerate(first_made(graph)):
            if first is not None and graph.storages[storage].role is not Role.RESTING:
                self._absent[first] += graph.storages[storage].size_bytes
        self._extra = np.full(count, _NONE, dtype=np.int64)
        self._dropped: list[set[Gap]] = [set() for _ in graph.values]
        self._targets: dict[int, set[int]] = {}
        self._chains: dict[int, QuickChain] = {}
        self._read_in: dict[int, set[int]] = defaultdict(set)
        self._steps: list[Step] = []
        # Not asked for by `take_changes` yet: steps from here on, and some that were undone.
        self._first_new = 0
        self._undone: list[Step] = []

    def _plain_bytes(self) -> np.ndarray:
        """Bytes alive while each operator runs; what may be dropped dies with its last use."""
        graph, lives = self.graph, self.lives
        change = np.zeros(len(graph.operators) + 1, dtype=np.int64)
        held_to: dict[int, list[int]] = {}
        for number, value in enumerate(graph.values):
            last = lives.last_use(number) if lives.may_drop(number) else None
            ends = held_to.setdefault(value.storage, [])
            ends.append(graph.last_use[value.storage] if last is None else last)
        for storage, first in enumerate(first_made(graph)):
            what = graph.storages[storage]
            if first is None or what.role is Role.RESTING:
                continue
            last = max(first, *held_to[storage])
            change[first] += what.size_bytes
            change[min(last + 1, len(change) - 1)] -= what.size_bytes
        return np.cumsum(change)[:-1]

    def schedule(self) -> Schedule:
        """What is dropped."""
        return Schedule(frozenset(gap for gaps in self._dropped for gap in gaps))

    def is_dropped(self, gap: Gap) -> bool:
        return gap in self._dropped[gap.value]

    def drops_of(self, value: int) -> frozenset[Gap]:
        """Gaps in which the value is dropped."""
        return frozenset(self._dropped[value])

    def memory_bytes(self) -> np.ndarray:
        """The most memory while each operator, and what is recomputed before it, runs."""
        return np.maximum(self._alive + self._workspace, self._alive - self._absent + self._extra)

    def bytes_if_kept(self, gap: Gap) -> int:
        """The most memory in a gap while the program's operators run, were its value kept."""
        inside = slice(gap.start + 1, gap.end)
        most = (self._alive[inside] + self._workspace[inside]).max(initial=0)
        return int(most) + self.lives.size_bytes[gap.value]

    def bytes_before(self, moment: int) -> int:
        """Bytes alive before an operator, and before what is recomputed for it."""
        return int(self._alive[moment] - self._absent[moment])

    def added_us(self, gap: Gap, seen: set[int], enough_us: float = math.inf) -> float:
        """What dropping a value in a gap adds to the recompute time; infinite if it cannot be.

        Makers that must run at its end, and before what reads the value in the gap to make others
        again, beyond those that run there already.

        Args:
            seen: is given the values whose presence decided that.
            enough_us: where it adds as much or more, part of it will do.
        """
        lives, value = self.lives, gap.value
        moments = [gap.end, *self._moments_within(gap)] if value in self._read_in else [gap.end]
        total_us = 0.0
        for moment in moments:
            chain = self._chains.get(moment)
            ran = chain.ran if chain is not None else _NOTHING
            total_us += lives.missing_us(
                moment, value, self._dropped, ran, seen, enough_us - total_us
            )
            if total_us >= enough_us:
                break
        return total_us

    def take_changes(self) -> Changes:
        """What is different from when this was last asked."""
        changes = Changes()
        for step in (*self._undone, *self._steps[self._first_new :]):
            changes.values.add(step.gap.value)
            for (moment, old), new in zip(step.before, step.after, strict=True):
                changes.moments.add(moment)
                for chain in (old, new):
                    if chain is not None:
                        changes.disturbed |= chain.touched
        self._first_new = len(self._steps)
        self._undone.clear()
        return changes

    @property
    def num_steps(self) -> int:
        """Drops and ends of drops so far, without those undone."""
        return len(self._steps)

    def undo(self) -> Step:
        """Take the last step back."""
        step = self._steps.pop()
        if len(self._steps) < self._first_new:
            self._first_new = len(self._steps)
            self._undone.append(step)
        self._mark(step.gap, drop=not step.is_drop)
        for (moment, old), new in zip(step.before, step.after, strict=True):
            self._set_chain(moment, new, old)
        self.recompute_us = step.time_us
        return step

    def drop(self, gap: Gap) -> bool:
        """Drop a value in a gap; False, and nothing changed, where that cannot be recomputed."""
        return self._change(gap, drop=True)

    def keep(self, gap: Gap) -> bool:
        """Take a drop back; False, and nothing changed, where something cannot be recomputed."""
        return self._change(gap, drop=False)

    def early_ends(self, gap: Gap) -> list[int]:
        """Operators within a gap at which its drop may well end, in order.

        Before them a chain reads the value or makes it on its way, or does so with something that
        its maker reads; or that is read for the last time, or before it is dropped itself.
        """
        lives, found = self.lives, set(self._moments_within(gap))
        for read in self.graph.operators[lives.maker[gap.value]].reads:
            found |= self._read_in.get(read, _NOTHING)
            if lives.may_drop(read):
                found.add(lives.last_use(read))
                found.update(drop.start for drop in self._dropped[read])
            else:
                found.add(self.graph.last_use[self.graph.values[read].storage])
        return sorted(
            moment
            for moment in found
            if gap.start + 1 < moment < gap.end and lives.recomputes_at(moment)
        )

    def last_at_hand(self, gap: Gap, seen: set[int]) -> int | None:
        """The last operator within a gap before which what the value's maker reads is at hand.

        That is: there, or made again anyway.

        Args:
            seen: is given the values whose presence decided that.

        Returns:
            None if that is the end of the gap, or there is none.
        """
        lives, last = self.lives, gap.end
        reads = self.graph.operators[lives.maker[gap.value]].reads
        seen.update(reads)
        before = last + 1
        while last < before:
            before = last
            for read in reads:
                there = min(last, lives.there_until(read))
                for drop in self._dropped[read]:
                    if drop.start < there <= drop.end:
                        there = drop.start
                made = (m for m in self._read_in.get(read, ()) if there < m <= last)
                last = max(made, default=there) if there < last else last
        if last >= gap.end:
            return None
        last = lives.last_recompute(last)
        return last if last > gap.start + 1 else None

    def first_reread(self, gap: Gap) -> int | None:
        """The first operator within a gap before which a chain reads the value."""
        moments = [m for m in self._moments_within(gap) if m > gap.start + 1]
        return min(moments, default=None)

    def _change(self, gap: Gap, *, drop: bool) -> bool:
        self._mark(gap, drop=drop)
        before: list[tuple[int, QuickChain | None]] = []
        after: list[QuickChain | None] = []
        for moment in (gap.end, *self._moments_within(gap)):
            targets, chain = self._targets.get(moment), None
            if targets:
                chain = self.lives.quick_chain(moment, targets, self._dropped)
                if chain is None:
                    self._mark(gap, drop=not drop)
                    return False
            before.append((moment, self._chains.get(moment)))
            after.append(chain)
        self._steps.append(Step(gap, drop, before, after, self.recompute_us))
        for (moment, old), new in zip(before, after, strict=True):
            self._set_chain(moment, old, new)
            self.recompute_us += (new.cost_us if new else 0.0) - (old.cost_us if old else 0.0)
        return True

    def _mark(self, gap: Gap, *, drop: bool) -> None:
        value, start, end = gap
        size = self.lives.size_bytes[value]
        if drop:
            self._alive[start + 1 : end] -= size
            self._absent[end] += size
            self._dropped[value].add(gap)
            self._targets.setdefault(end, set()).add(value)
        else:
            self._alive[start + 1 : end] += size
            self._absent[end] -= size
            self._dropped[value].discard(gap)
            self._targets[end].discard(value)

    def _moments_within(self, gap: Gap) -> list[int]:
        """Operators in the gap before which a chain reads the value, or makes it on its way."""
        value, start, end = gap
        return [m for m in self._read_in.get(value, ()) if start < m < end]

    def _set_chain(self, moment: int, old: QuickChain | None, new: QuickChain | None) -> None:
        """Replace what is recomputed before an operator; of that, all but the time."""
        read_in = self._read_in
        old_values = old.touched if old else _NOTHING
        new_values = new.touched if new else _NOTHING
        for value in old_values - new_values:
            read_in[value].discard(moment)
        for value in new_values - old_values:
            read_in[value].add(moment)
        if new is None:
            self._chains.pop(moment, None)
            self._extra[moment] = _NONE
        else:
            self._chains[moment] = new
            self._extra[moment] = new.extra_bytes
