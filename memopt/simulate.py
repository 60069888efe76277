"""What a schedule costs: memory while each operator runs, and time of recomputation.

`ScheduleState` keeps both up to date while gaps are dropped and taken back one by one: a change
touches the memory of its gap, the chain at its end, and the chains within it that read the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memopt.errors import MemoptError
from memopt.graph import OpGraph, Role, first_made
from memopt.schedule import Chain, Gap, Lives, Schedule

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
        self._dropped: dict[int, set[Gap]] = {}
        self._targets: dict[int, set[int]] = {}
        self._chains: dict[int, Chain] = {}
        self._read_in: dict[int, set[int]] = {}

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
        return Schedule(frozenset(gap for gaps in self._dropped.values() for gap in gaps))

    def is_dropped(self, gap: Gap) -> bool:
        return gap in self._dropped.get(gap.value, ())

    def drops_of(self, value: int) -> frozenset[Gap]:
        """Gaps in which the value is dropped."""
        return frozenset(self._dropped.get(value, ()))

    def memory_bytes(self) -> np.ndarray:
        """The most memory while each operator, and what is recomputed before it, runs."""
        return np.maximum(self._alive + self._workspace, self._alive - self._absent + self._extra)

    def quick_cost_us(self, gap: Gap) -> float:
        """About what dropping a value in a gap adds to the recompute time, or saves if it is kept.

        Its maker, the makers of what that reads and is not there at the end of the gap, and its
        maker again for each chain in the gap that reads the value.
        """
        graph, lives = self.graph, self.lives
        own_us = graph.operators[lives.maker[gap.value]].cost_us
        total = own_us * (1 + len(self._moments_within(gap)))
        seen, open_values = {gap.value}, [gap.value]
        while open_values:
            for read in graph.operators[lives.maker[open_values.pop()]].reads:
                if read in seen or lives.there(read, gap.end, self._dropped.get(read, ())):
                    continue
                seen.add(read)
                if not lives.may_drop(read):
                    continue
                total += graph.operators[lives.maker[read]].cost_us
                open_values.append(read)
        return total

    def drop(self, gap: Gap) -> bool:
        """Drop a value in a gap; False, and nothing changed, where that cannot be recomputed."""
        return self._change(gap, drop=True)

    def keep(self, gap: Gap) -> bool:
        """Take a drop back; False, and nothing changed, where something cannot be recomputed."""
        return self._change(gap, drop=False)

    def early_ends(self, gap: Gap) -> list[int]:
        """Operators within a gap at which its drop may well end, in order.

        Before them a chain makes the value on its way, or something that its maker reads is read
        for the last time, or before it is dropped itself.
        """
        lives, found = self.lives, set()
        maker = lives.maker[gap.value]
        for moment in self._moments_within(gap):
            if maker in self._chains[moment].operators:
                found.add(moment)
        for read in self.graph.operators[maker].reads:
            if lives.may_drop(read):
                found.add(lives.last_use(read))
                found.update(drop.start for drop in self._dropped.get(read, ()))
            else:
                found.add(self.graph.last_use[self.graph.values[read].storage])
        return sorted(
            moment
            for moment in found
            if gap.start + 1 < moment < gap.end and lives.recomputes_at(moment)
        )

    def end_early(self, gap: Gap, moment: int) -> Gap | None:
        """Let a drop end at an earlier operator; None, and nothing changed, where that fails."""
        shorter = Gap(gap.value, gap.start, moment)
        if not self.keep(gap):
            return None
        if self.drop(shorter):
            return shorter
        self.drop(gap)
        return None

    def _change(self, gap: Gap, *, drop: bool) -> bool:
        self._mark(gap, drop=drop)
        moments = {gap.end, *self._moments_within(gap)}
        chains = {moment: self._chain(moment) for moment in moments}
        if any(chain is None and self._targets.get(m) for m, chain in chains.items()):
            self._mark(gap, drop=not drop)
            return False
        for moment, chain in chains.items():
            self._set_chain(moment, chain)
        return True

    def _mark(self, gap: Gap, *, drop: bool) -> None:
        size = self.lives.size_bytes[gap.value]
        sign = -1 if drop else 1
        self._alive[gap.start + 1 : gap.end] += sign * size
        self._absent[gap.end] -= sign * size
        gaps = self._dropped.setdefault(gap.value, set())
        targets = self._targets.setdefault(gap.end, set())
        (gaps.add if drop else gaps.discard)(gap)
        (targets.add if drop else targets.discard)(gap.value)

    def _moments_within(self, gap: Gap) -> list[int]:
        """Operators in the gap before which a chain reads, or remakes, the value."""
        return [m for m in self._read_in.get(gap.value, ()) if gap.start < m < gap.end]

    def _chain(self, moment: int) -> Chain | None:
        targets = self._targets.get(moment)
        return self.lives.chain(moment, targets, self._dropped) if targets else None

    def _set_chain(self, moment: int, chain: Chain | None) -> None:
        old = self._chains.pop(moment, None)
        if old is not None:
            self.recompute_us -= old.cost_us
            for value in self._touched(old):
                self._read_in[value].discard(moment)
        self._extra[moment] = _NONE
        if chain is None:
            return
        self._chains[moment] = chain
        self.recompute_us += chain.cost_us
        self._extra[moment] = chain.extra_bytes
        for value in self._touched(chain):
            self._read_in.setdefault(value, set()).add(moment)

    def _touched(self, chain: Chain) -> Iterable[int]:
        """Values whose presence decides what the chain does."""
        made = (v for number in chain.operators for v in self.graph.operators[number].makes)
        return {*chain.leaves, *made}
