"""Bytes that online passes hold, counted exactly, and kept inside a budget by eviction.

Every storage that is counted carries a small object whose end is its own, as in
memopt/live_bytes.py. Beside the bytes there is a model of where they might lie, for the policies
that ask: an `Arena` of the budget's size. It decides nothing else; what finds no room in it lies
beyond it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from memopt.arena import Arena, Block, Side
from memopt.capture.tracking import is_made_of_tensors
from memopt.live_bytes import LiveBytes

_MEMORIES = count()
_ENDLESS_BYTES = 1 << 62


@dataclass
class Totals:
    """What all passes under a policy took so far.

    Attributes:
        peak_bytes: the most in use at once; what a node of backward takes while it runs is as
            measured when one of its kind and shapes ran first.
        over_budget_bytes: by how much that was over the budget.
        num_evictions, num_recomputes: tensors, operators.
        recompute_us: time of those operators.
    """

    peak_bytes: int = 0
    over_budget_bytes: int = 0
    num_evictions: int = 0
    num_recomputes: int = 0
    recompute_us: float = 0.0


class Holder(Protocol):
    """A pass, as its memory sees it."""

    def evict(self, needed_bytes: int) -> bool:
        """Evicts something; whether there was anything left to try."""

    def settle(self) -> None:
        """Notes what has ended meanwhile."""


class Holding:
    """Lives as long as the storage it is an attribute of.

    Attributes:
        number: what the pass that made it calls it.
        ended: is given the number as it ends; tells passes apart.
        block: where it might lie.
    """

    __slots__ = ("_memory", "block", "ended", "number", "size_bytes")

    def __init__(
        self, memory: OnlineMemory, size_bytes: int, number: int, ended: deque[int] | None
    ) -> None:
        self.number = number
        self.ended = ended
        self.size_bytes = size_bytes
        self.block: Block | None = None
        self._memory = memory
        memory.grow(size_bytes)

    def __del__(self) -> None:
        self._memory.end(self)


class _Addresses(Arena):
    """An arena that never fails: what does not fit lies beyond it."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._beyond = Arena(_ENDLESS_BYTES)
        self._is_beyond: set[Block] = set()

    def allocate(self, size_bytes: int, side: Side = Side.BEST) -> Block | None:
        block = super().allocate(size_bytes, side)
        if block is None:
            block = self._beyond.allocate(size_bytes)
            assert block is not None
            self._is_beyond.add(block)
        return block

    def free(self, block: Block) -> None:
        if block in self._is_beyond:
            self._is_beyond.discard(block)
            self._beyond.free(block)
        else:
            super().free(block)


class OnlineMemory:
    """Shared by passes that are alive at once.

    Args:
        budget_bytes: at least 1.
        held_bytes: in use already, such as gradients of passes before.

    Attributes:
        live_bytes: in use now.
        totals: where peaks are noted.
        arena: where blocks might lie.
        has_addresses: whether they are looked for.
        measuring: a counter that must not see what passes do themselves.
        is_busy: ends of storages and handles are only noted, to be settled later.
    """

    def __init__(self, budget_bytes: int, held_bytes: int, totals: Totals) -> None:
        self.budget_bytes = budget_bytes
        self.live_bytes = held_bytes
        self.totals = totals
        self.arena = _Addresses(budget_bytes)
        self.has_addresses = False
        self.measuring: LiveBytes | None = None
        self.is_busy = False
        self._attribute = f"_memopt_online_{next(_MEMORIES)}"
        self._passes: list[weakref.ref[Holder]] = []
        self._freed: list[Block] = []
        self.note_peak(0)

    def join(self, holder: Holder) -> None:
        """Adds a pass, until it is gone."""
        self._passes = [ref for ref in self._passes if ref() is not None]
        self._passes.append(weakref.ref(holder))

    @property
    def is_in_use(self) -> bool:
        """Whether a pass is alive."""
        return any(ref() is not None for ref in self._passes)

    def holding(self, storage: torch.UntypedStorage) -> Holding | None:
        """What a storage carries, if it is counted."""
        return getattr(storage, self._attribute, None)

    def hold(self, storage: torch.UntypedStorage, number: int, ended: deque[int] | None) -> Holding:
        """Counts a new storage until it ends."""
        held = Holding(self, storage.nbytes(), number, ended)
        setattr(storage, self._attribute, held)
        return held

    def count(self, tensors: Sequence[Tensor | None]) -> None:
        """Counts the storages of gradients that were not met before."""
        for tensor in tensors:
            if (
                tensor is None
                or tensor.layout is not torch.strided
                or is_made_of_tensors(type(tensor))
            ):
                continue
            storage = tensor.untyped_storage()
            if self.holding(storage) is None:
                self.place(self.hold(storage, -1, None), Side.BEST)

    def place(self, held: Holding, side: Side) -> Block | None:
        """Finds an address for what was counted, if any policy asks for addresses."""
        if held.size_bytes and self.has_addresses:
            self.settle()
            held.block = self.arena.allocate(held.size_bytes, side)
        return held.block

    def grow(self, size_bytes: int) -> None:
        """Adds to what is in use."""
        self.live_bytes += size_bytes
        self.note_peak(0)

    def note_peak(self, working_bytes: int) -> None:
        """Notes what is in use, together with what is about to be."""
        totals, now_bytes = self.totals, self.live_bytes + working_bytes
        if now_bytes > totals.peak_bytes:
            totals.peak_bytes = now_bytes
            totals.over_budget_bytes = max(now_bytes - self.budget_bytes, 0)

    def end(self, held: Holding) -> None:
        """Called as a storage ends, which may be at any time: the rest is for `settle`."""
        self.live_bytes -= held.size_bytes
        if held.block is not None:
            self._freed.append(held.block)
        if held.ended is not None:
            held.ended.append(held.number)

    def settle(self) -> None:
        """Passes note what has ended, and the blocks of that are free."""
        for ref in self._passes:
            if (one := ref()) is not None:
                one.settle()
        while self._freed:
            self.arena.free(self._freed.pop())

    def make_room(self, needed_bytes: int) -> None:
        """Evicts until so much fits the budget, or nothing is left to evict."""
        if self.live_bytes + needed_bytes <= self.budget_bytes:
            return
        was_busy, self.is_busy = self.is_busy, True
        try:
            self.settle()
            while (excess_bytes := self.live_bytes + needed_bytes - self.budget_bytes) > 0:
                passes = [one for ref in reversed(self._passes) if (one := ref()) is not None]
                if not any(one.evict(max(needed_bytes, excess_bytes)) for one in passes):
                    break
                self.settle()
        finally:
            self.is_busy = was_busy
