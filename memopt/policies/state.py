"""What an online policy may know: what has run so far, what is in memory, and where.

Values are numbers into `OpGraph.values`. An online policy decides as it goes: of what has not been
made it may ask for size and cost alone, when its memory is to be found, and last uses are not told.
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
    """Memory of a replay as it runs. Arrays are indexed by value.

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

    def __init__(self, graph: OpGraph, arena: Allocator) -> None:
        num_values = len(graph.values)
        self.arena = arena
        self.maker = graph.maker()
        self.size_bytes = np.array(
            [graph.storages[value.storage].size_bytes for value in graph.values], dtype=np.int64
        )
        self.cost_us = np.array(
            [0.0 if maker is None else graph.operators[maker].cost_us for maker in self.maker]
        )
        self.last_access_us = np.zeros(num_values)
        self.num_recomputes = np.zeros(num_values, dtype=np.int64)
        self.blocks: list[Block | None] = [None] * num_values
        self.value_of: dict[Block, int] = {}
        self.is_resident = [maker is None for maker in self.maker]
        self.is_made = [maker is None for maker in self.maker]
        self.candidates: set[int] = set()
        self.clock_us = 0.0
        rests = [graph.storages[value.storage].role is Role.RESTING for value in graph.values]
        self.parents: list[Sequence[int]] = [
            ()
            if maker is None
            else tuple(read for read in graph.operators[maker].reads if not rests[read])
            for maker in self.maker
        ]
        self.children: list[list[int]] = [[] for _ in graph.values]

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
    """Chooses what to evict. One file each; made anew, from a `State`, for each replay."""

    def choose(self, needed_bytes: int) -> Sequence[int]:
        """Candidates to evict, so that a block may fit; none if there is no way."""

    def residency_changed(self, value: int) -> None:
        """A value's contents came or went (the state tells which)."""

    def side(self, value: int) -> Side:
        """Where the memory of a value that is about to be made is to be looked for."""
