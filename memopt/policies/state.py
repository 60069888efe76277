"""What an online policy may know: what has run so far, what is in memory, and where.

Values are numbers into `OpGraph.values`, or of a pass in training, where they are added as they are
made. An online policy decides as it goes: of what has not been made it may ask for size and cost
alone, when its memory is to be found, and last uses are not told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memopt.arena import Allocator, Block, Side
from memopt.graph import OpGraph, Role

#: Staleness of what was used just now, in microseconds, so that a score stays finite.
_LEAST_STALENESS_US = 1e-3


class State:
    """Memory as an iteration runs. Arrays are indexed by value, and may be longer than needed.

    Attributes:
        arena: where the blocks lie.
        maker: number of the operator that makes a value; None for one that rests in memory.
        size_bytes: of the value's storage.
        cost_us: of its maker.
        last_access_us: when it was last read or made.
        num_recomputes: how often it was made again.
        blocks: its memory; None where it has none.
        value_of: the value in a block.
        is_resident: whether its contents are there.
        is_made: whether the program has made it.
        candidates: what may be evicted now.
        clock_us: time of operators so far, recomputation included.
        parents: of each value, what its maker reads.
        children: of each value, what was made from it so far; that is, made at least once.
    """

    def __init__(self, arena: Allocator, capacity: int = 0) -> None:
        """No values yet, room for `capacity`."""
        self.arena = arena
        self.maker: list[int | None] = []
        self.size_bytes = np.zeros(capacity, dtype=np.int64)
        self.cost_us = np.zeros(capacity)
        self.last_access_us = np.zeros(capacity)
        self.num_recomputes = np.zeros(capacity, dtype=np.int64)
        self.blocks: list[Block | None] = []
        self.value_of: dict[Block, int] = {}
        self.is_resident: list[bool] = []
        self.is_made: list[bool] = []
        self.candidates: set[int] = set()
        self.clock_us = 0.0
        self.parents: list[Sequence[int]] = []
        self.children: list[list[int]] = []

    @classmethod
    def of(cls, graph: OpGraph, arena: Allocator) -> State:
        """Before the first operator of an iteration."""
        state = cls(arena, len(graph.values))
        rests = [graph.storages[value.storage].role is Role.RESTING for value in graph.values]
        for value, maker in zip(graph.values, graph.maker(), strict=True):
            size_bytes = graph.storages[value.storage].size_bytes
            if maker is None:
                state.add(None, size_bytes, 0.0, ())
            else:
                made_by = graph.operators[maker]
                parents = tuple(read for read in made_by.reads if not rests[read])
                state.add(maker, size_bytes, made_by.cost_us, parents)
        return state

    def add(
        self, maker: int | None, size_bytes: int, cost_us: float, parents: Sequence[int]
    ) -> None:
        """The next value. One without a maker rests in memory; parents do not."""
        number = len(self.maker)
        if number == len(self.size_bytes):
            room = max(number, 64)
            self.size_bytes = np.concatenate([self.size_bytes, np.zeros(room, dtype=np.int64)])
            self.cost_us = np.concatenate([self.cost_us, np.zeros(room)])
            self.last_access_us = np.concatenate([self.last_access_us, np.zeros(room)])
            more = np.zeros(room, dtype=np.int64)
            self.num_recomputes = np.concatenate([self.num_recomputes, more])
        self.maker.append(maker)
        self.size_bytes[number] = size_bytes
        self.cost_us[number] = cost_us
        self.blocks.append(None)
        self.is_resident.append(maker is None)
        self.is_made.append(maker is None)
        self.parents.append(parents)
        self.children.append([])

    def is_evicted(self, value: int) -> bool:
        """Made once and not there now: evicted, overwritten, or dropped by the program."""
        return self.is_made[value] and not self.is_resident[value]

    def evicted_neighbours(self, value: int) -> list[int]:
        """What it was made from, and what was made from it, that is not there."""
        near = [*self.parents[value], *self.children[value]]
        return [other for other in near if self.is_evicted(other)]

    def ordered_candidates(self) -> NDArray[np.int64]:
        """Candidates by number, so that ties are always broken alike."""
        found = np.fromiter(self.candidates, dtype=np.int64, count=len(self.candidates))
        found.sort()
        return found

    def staleness_us(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Time since each was last used, above 0."""
        return np.maximum(self.clock_us - self.last_access_us[values], _LEAST_STALENESS_US)


class Policy(Protocol):
    """Chooses what to evict. One file each; made anew, from a `State`, for each replay.

    Attributes:
        uses_addresses: whether it asks where blocks lie.
    """

    @property
    def uses_addresses(self) -> bool: ...

    def choose(self, needed_bytes: int) -> Sequence[int]:
        """Candidates to evict, so that a block may fit; none if there is no way."""

    def residency_changed(self, value: int) -> None:
        """A value's contents came or went (the state tells which)."""

    def side(self, value: int) -> Side:
        """Where the memory of a value that is about to be made is to be looked for."""
