"""Runs an iteration in simulation under an online policy, in memory with addresses.

    result = replay(graph, POLICIES["dtr"], Arena(budget_bytes))
    print(result.outcome, result.overhead)

When a block finds no room the policy evicts until it does. An operator whose inputs are not there
has them made again first, and theirs before, with an explicit stack (chains may be thousands deep);
what a pending operator reads is locked. What the program drops is freed at once. What was made
again only on the way, and is not the program's any more, may be read by other recomputations for
the same operator of the program, may be evicted, and is freed when that operator has run. An
operator that writes in place takes over the block, in a recomputation too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from memopt.arena import Allocator, Block, Side
from memopt.evictable import evictable_values
from memopt.graph import OpGraph, Role, first_made
from memopt.policies.state import Policy, State


class Outcome(Enum):
    """How a replay ended."""

    DONE = "done"
    OUT_OF_MEMORY = "out of memory"
    THRASHING = "thrashing"
    """Recomputation passed the limit."""


@dataclass(frozen=True)
class ReplayResult:
    """What a replay took. Where it did not end well, up to there.

    Attributes:
        base_us: time of the plain iteration.
        recompute_us: time of operators that were run again.
        num_evictions: values evicted for want of room.
        num_recomputes: operators that were run again.
        peak_bytes: most bytes in use at once, as asked for.
        high_water_bytes: memory that took with addresses.
        stopped_at: number of the operator at which it ended early; None if it did not.
    """

    outcome: Outcome
    base_us: float
    recompute_us: float
    num_evictions: int
    num_recomputes: int
    peak_bytes: int
    high_water_bytes: int
    stopped_at: int | None

    @property
    def overhead(self) -> float:
        """Recomputation over the plain iteration's time."""
        return self.recompute_us / self.base_us if self.base_us else 0.0


class Observer(Protocol):
    """Is told what happens to memory."""

    def ran(self, operator: int, reads: dict[int, Block], writes: dict[int, Block]) -> None:
        """An operator ran: the blocks of the values it read and made; what has no bytes has none.

        A block that is both read and written was written in place.
        """

    def freed(self, block: Block) -> None:
        """A block that an operator wrote is given back."""


def replay(
    graph: OpGraph,
    policy: Callable[[State], Policy],
    arena: Allocator,
    *,
    thrash_limit: float = 10.0,
    observer: Observer | None = None,
) -> ReplayResult:
    """One iteration. `arena` must be empty; storages that rest in memory are not in it.

    Args:
        thrash_limit: ends it when recomputation takes more than this many plain iterations.
    """
    return _Run(graph, policy, arena, thrash_limit, observer).result()


class _Stop(Exception):  # noqa: N818 (an outcome, not an error)
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass
class _Pending:
    """An operator that waits for what it reads.

    Attributes:
        waiting: what is not there yet.
        locked: what is held for it.
    """

    operator: int
    is_replay: bool
    waiting: list[int] = field(default_factory=list)
    locked: list[int] = field(default_factory=list)


class _Run:
    def __init__(
        self,
        graph: OpGraph,
        policy: Callable[[State], Policy],
        arena: Allocator,
        thrash_limit: float,
        observer: Observer | None,
    ) -> None:
        self.graph = graph
        self.arena = arena
        self.state = State.of(graph, arena)
        self.policy = policy(self.state)
        self.observer = observer
        self.base_us = graph.total_cost_us()
        self.limit_us = thrash_limit * self.base_us
        self.evictable = evictable_values(graph)
        self.locks = [0] * len(graph.values)
        #: Of each storage, the value the program holds in it.
        self.held: list[int | None] = [None] * len(graph.storages)
        #: Made again for the operator that is being run, and not held by the program.
        self.passing: set[int] = set()
        self.recompute_us = 0.0
        self.num_evictions = 0
        self.num_recomputes = 0
        self.peak_bytes = 0

    def result(self) -> ReplayResult:
        outcome, stopped_at = Outcome.DONE, None
        dropped_after: list[list[int]] = [[] for _ in self.graph.operators]
        for storage, first in enumerate(first_made(self.graph)):
            if first is not None and self.graph.storages[storage].role is not Role.RESTING:
                last = max(first, self.graph.last_use[storage])
                if last < len(self.graph.operators):
                    dropped_after[last].append(storage)
        for operator in range(len(self.graph.operators)):
            try:
                self.run(operator)
            except _Stop as stop:
                outcome, stopped_at = stop.outcome, operator
                break
            for storage in dropped_after[operator]:
                held, self.held[storage] = self.held[storage], None
                if held is not None and self.state.is_resident[held]:
                    self.release(held)
        return ReplayResult(
            outcome=outcome,
            base_us=self.base_us,
            recompute_us=self.recompute_us,
            num_evictions=self.num_evictions,
            num_recomputes=self.num_recomputes,
            peak_bytes=self.peak_bytes,
            high_water_bytes=self.arena.high_water_bytes,
            stopped_at=stopped_at,
        )

    def run(self, operator: int) -> None:
        """Runs an operator of the program, after whatever must be made again for it."""
        stack = [self.pending(operator, is_replay=False)]
        while stack:
            top = stack[-1]
            if top.waiting:
                read = top.waiting[-1]
                if self.state.is_resident[read]:
                    top.waiting.pop()
                    self.lock(top, read)
                else:
                    maker = self.state.maker[read]
                    assert maker is not None
                    stack.append(self.pending(maker, is_replay=True))
            else:
                stack.pop()
                self.execute(top, wanted=stack[-1].waiting if stack else ())
        for value in sorted(self.passing):
            if self.state.is_resident[value]:
                self.release(value)
        self.passing.clear()

    def pending(self, operator: int, *, is_replay: bool) -> _Pending:
        """Locks what is there first, lest making the rest again evicts it."""
        found = _Pending(operator, is_replay)
        for read in self.graph.operators[operator].reads:
            if self.state.maker[read] is None:
                continue
            if self.state.is_resident[read]:
                self.lock(found, read)
            else:
                found.waiting.append(read)
        return found

    def execute(self, pending: _Pending, wanted: Sequence[int]) -> None:
        """Runs an operator all of whose reads are there."""
        state, operator = self.state, self.graph.operators[pending.operator]
        reads = {read: block for read in operator.reads if (block := state.blocks[read])}
        writes: dict[int, Block] = {}
        overwritten: list[int] = []
        for made in operator.makes:
            base = self.base_to_take_over(pending, made)
            if base is not None:
                overwritten.append(base)
                if block := state.blocks[base]:
                    writes[made] = block
            elif not self.rests(made) and state.size_bytes[made]:
                writes[made] = self.allocate(int(state.size_bytes[made]), self.policy.side(made))
        if operator.workspace_bytes:
            workspace = self.allocate(operator.workspace_bytes, Side.BEST)
            self.arena.free(workspace)
        if self.observer is not None:
            self.observer.ran(pending.operator, reads, writes)
        self.count(pending)
        for base in overwritten:
            self.leave(base)
        spare: list[Block] = []
        for made in operator.makes:
            if not pending.is_replay:
                self.make_first(made)
            if not state.is_resident[made] and (self.is_held(made) or made in wanted):
                self.enter(made, writes.get(made))
            elif made in writes:
                spare.append(writes[made])
        for read in pending.locked:
            self.unlock(read)
        for block in spare:
            self.give_back(block)

    def base_to_take_over(self, pending: _Pending, made: int) -> int | None:
        """The value that is overwritten in place, if its block may be taken.

        In a recomputation a base that another pending operator reads, or the program holds, is
        left alone.
        """
        value = self.graph.values[made]
        if value.version == 0 or self.rests(made):
            return None
        base = next(
            (read for read in pending.locked if self.graph.values[read].storage == value.storage),
            None,
        )
        if not pending.is_replay:
            if base is None:  # overwritten unread
                base = self.held[value.storage]
                if base is None or not self.state.is_resident[base]:
                    return None
                self.lock(pending, base)
            return base
        free_to_take = base is not None and self.locks[base] == 1 and not self.is_held(base)
        return base if free_to_take else None

    def make_first(self, made: int) -> None:
        """The program makes a value: from here on it holds this one of the storage."""
        state, storage = self.state, self.graph.values[made].storage
        self.held[storage] = made
        state.is_made[made] = True
        for parent in state.parents[made]:
            state.children[parent].append(made)
        if self.rests(made):
            state.is_resident[made] = True

    def count(self, pending: _Pending) -> None:
        state, operator = self.state, self.graph.operators[pending.operator]
        state.clock_us += operator.cost_us
        for used in (*operator.reads, *operator.makes):
            state.last_access_us[used] = state.clock_us
        if pending.is_replay:
            self.num_recomputes += 1
            self.recompute_us += operator.cost_us
            for made in operator.makes:
                state.num_recomputes[made] += 1
            if self.recompute_us > self.limit_us:
                raise _Stop(Outcome.THRASHING)

    def allocate(self, size_bytes: int, side: Side) -> Block:
        while (block := self.arena.allocate(size_bytes, side)) is None:
            victims = self.policy.choose(size_bytes)
            if not victims:
                raise _Stop(Outcome.OUT_OF_MEMORY)
            for victim in victims:
                self.num_evictions += 1
                self.release(victim)
        self.peak_bytes = max(self.peak_bytes, self.arena.requested_bytes)
        return block

    def rests(self, value: int) -> bool:
        return self.graph.storages[self.graph.values[value].storage].role is Role.RESTING

    def is_held(self, value: int) -> bool:
        return self.held[self.graph.values[value].storage] == value

    def lock(self, pending: _Pending, value: int) -> None:
        pending.locked.append(value)
        self.locks[value] += 1
        self.state.candidates.discard(value)

    def unlock(self, value: int) -> None:
        self.locks[value] -= 1
        if self.locks[value] or not self.state.is_resident[value]:
            return
        if not self.is_held(value):
            self.passing.add(value)
        if self.state.size_bytes[value] and (self.evictable[value] or value in self.passing):
            self.state.candidates.add(value)

    def enter(self, value: int, block: Block | None) -> None:
        """Contents are there, in a block of their own."""
        state = self.state
        state.is_resident[value] = True
        state.blocks[value] = block
        if block is not None:
            state.value_of[block] = value
        if self.evictable[value] and self.is_held(value):
            state.candidates.add(value)
        self.policy.residency_changed(value)

    def leave(self, value: int) -> None:
        """Contents are gone; their block goes on."""
        state = self.state
        state.is_resident[value] = False
        block, state.blocks[value] = state.blocks[value], None
        if block is not None:
            del state.value_of[block]
        state.candidates.discard(value)
        self.policy.residency_changed(value)

    def release(self, value: int) -> None:
        """Contents are gone, and their memory is given back."""
        block = self.state.blocks[value]
        self.leave(value)
        if block is not None:
            self.give_back(block)

    def give_back(self, block: Block) -> None:
        if self.observer is not None:
            self.observer.freed(block)
        self.arena.free(block)
