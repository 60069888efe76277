"""Values of an online pass: what made each, and from what that stays it can be made again."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import NamedTuple

import torch

from memopt.capture.recording import Call
from memopt.capture.tracking import Ran, Tracker
from memopt.errors import MemoptError
from memopt.execute.online_memory import Holding, OnlineMemory
from memopt.execute.replay_step import Homes, ReplayStep, gives_all, written_over
from memopt.graph import Replay

#: A value that needs more roots than that is never evicted, so that finding them stays cheap.
_MOST_ROOTS = 64


class PassStorages:
    """Numbers of a pass's storages. What it makes carries a `Holding`; it keeps the others.

    Attributes:
        ended: numbers of its own storages that have ended.
        begun: what the new ones carry, by number, until they have a place.
    """

    def __init__(self, memory: OnlineMemory) -> None:
        self.ended: deque[int] = deque()
        self.begun: dict[int, Holding] = {}
        self._memory = memory
        self._resting: dict[int, int] = {}
        self._num_storages = 0

    def number(self, storage: torch.UntypedStorage) -> int | None:
        held = self._memory.holding(storage)
        if held is not None and held.ended is self.ended and held.number >= 0:
            return held.number
        return self._resting.get(storage._cdata)

    def begin(self, storage: torch.UntypedStorage, *, resting: bool) -> int:
        number = self._num_storages
        self._num_storages += 1
        if resting:
            self._resting[storage._cdata] = number
        else:
            self.begun[number] = self._memory.hold(storage, number, self.ended)
        return number


class MadeBy(NamedTuple):
    """An operator of the pass.

    Attributes:
        makes: without new versions of resting values.
        bases: of those that it makes by writing in place, what it wrote over.
        fresh_bytes: of the storages that it makes.
    """

    call: Call
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    bases: dict[int, int]
    replay: Replay
    fresh_bytes: int
    cost_us: float


class Values:
    """What the forward pass made, by number.

    Attributes:
        tracker: numbers values.
        homes: the geometry in which each is kept.
        operators: in order.
        maker: of each value, the number of its operator; None for a resting one.
    """

    def __init__(self, storages: PassStorages) -> None:
        self.tracker = Tracker(storages)
        self.homes = Homes()
        self.operators: list[MadeBy] = []
        self.maker: list[int | None] = []
        self._children: dict[int, list[int]] = {}
        self._roots: list[frozenset[int] | None] = []
        self._unstable: set[int] = set()
        self._steps: dict[int, ReplayStep] = {}

    def add(self, ran: Ran, cost_us: float) -> MadeBy:
        """Notes an operator that ran."""
        tracker, number = self.tracker, len(self.operators)
        own = tuple(made for made in ran.makes if not self.is_resting(made))
        bases = written_over(tracker.values, ran.reads, own)
        fresh_bytes = sum(self.size_bytes(made) for made in own if made not in bases)
        operator = MadeBy(ran.call, ran.reads, own, bases, ran.replay, fresh_bytes, cost_us)
        self.operators.append(operator)
        self.homes.add(ran.call, own)
        self.maker += [None] * (len(tracker.values) - len(self.maker))
        for made in own:
            self.maker[made] = number
            for read in ran.reads:
                self._children.setdefault(read, []).append(made)
        return operator

    def is_resting(self, value: int) -> bool:
        """Whether its storage was there before the pass."""
        return self.tracker.is_resting[self.tracker.values[value].storage]

    def size_bytes(self, value: int) -> int:
        """Of its storage."""
        return self.tracker.sizes_bytes[self.tracker.values[value].storage]

    def roots(self, value: int, there: Container[int]) -> frozenset[int] | None:
        """What must stay so that a value can be made again; None for one that cannot be.

        Decided once, in order of values. Roots are values that cannot be made again themselves.

        Args:
            there: values that the pass holds.
        """
        while len(self._roots) <= value:
            self._roots.append(self._find_roots(len(self._roots), there))
        return self._roots[value]

    def _find_roots(self, value: int, there: Container[int]) -> frozenset[int] | None:
        maker = self.maker[value]
        if maker is None:
            return None
        operator = self.operators[maker]
        if operator.replay is not Replay.PURE or not gives_all(
            operator.call, operator.makes, operator.bases
        ):
            return None
        found: set[int] = set()
        for read in operator.reads:
            if self.is_resting(read):
                if self.tracker.values[read].version or read in self._unstable:
                    return None
            elif (roots := self._roots[read]) is not None:
                found |= roots
            elif read in there and read not in operator.bases.values():
                found.add(read)
            else:
                return None
        return frozenset(found) if len(found) <= _MOST_ROOTS else None

    def lose(self, value: int, there: Container[int]) -> list[int]:
        """A value is about to be written over, and cannot be made again.

        Returns:
            What was made from it: not to be made again from now on.
        """
        self._unstable.add(value)
        found, open_values = dict[int, None](), list(self._children.get(value, ()))
        if open_values:
            self.roots(len(self.maker) - 1, there)
        while open_values:
            child = open_values.pop()
            if child not in found and self._roots[child] is not None:
                found[child] = None
                open_values += self._children.get(child, ())
        return list(found)

    def pin(self, values: Iterable[int]) -> None:
        """They are not to be made again."""
        for value in values:
            self._roots[value] = None

    def step(self, number: int) -> ReplayStep:
        """An operator, ready to run again."""
        if number not in self._steps:
            made_by = self.operators[number]
            self._steps[number] = ReplayStep(
                made_by.call, made_by.reads, made_by.makes, made_by.bases, self.homes
            )
        return self._steps[number]

    def chain(self, wanted: Iterable[int], there: Container[int]) -> Chain:
        """What makes values again from what is there.

        Raises:
            MemoptError: something of that is gone.
        """
        numbers: set[int] = set()
        needed, leaves = set(wanted), set[int]()
        open_values = list(needed)
        while open_values:
            value = open_values.pop()
            maker = self.maker[value]
            if maker is None or self._roots[value] is None:
                raise MemoptError(
                    "backward asks for a tensor whose recomputation needs one that is gone: keep "
                    "the graph whole (retain_graph), or train without a memory budget"
                )
            numbers.add(maker)
            for read in self.operators[maker].reads:
                if read in there:
                    leaves.add(read)
                elif read not in needed:
                    needed.add(read)
                    open_values.append(read)
        order = sorted(numbers)
        last_reader = {read: number for number in order for read in self.operators[number].reads}
        return Chain(order, leaves, last_reader)


class Chain(NamedTuple):
    """Operators in order, what they find there, and which of them reads a value last."""

    order: list[int]
    leaves: set[int]
    last_reader: dict[int, int]
