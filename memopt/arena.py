"""Models of memory with addresses: where allocations lie, and what finds no room.

    arena = Arena(capacity_bytes)
    block = arena.allocate(4096)        # None: no free run is long enough
    arena.free(block)                   # grows together with its free neighbours

`Arena` is one range of addresses, best fit. `CachingArena` is PyTorch's CUDA caching allocator
("Memory management" in its CUDA notes; c10/cuda/CUDACachingAllocator): sizes rounded to 512 bytes;
a pool for requests of up to 1 MiB in segments of 2 MiB, and one for larger ones in segments of
20 MiB or, from 10 MiB on, of their own size rounded to 2 MiB; a free piece is split where at least
512 bytes (small) or more than 1 MiB (large) remain; where a new segment does not fit, cached ones
are given back first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

_KIB = 1024
_MIB = 1024 * _KIB


class Side(Enum):
    """Where to look for room."""

    BEST = "best"
    """The shortest free run that is long enough, the lowest of equals."""
    LOW = "low"
    """The lowest address."""
    HIGH = "high"
    """The highest address."""


@dataclass(eq=False)
class Block:
    """A run of addresses, in use or free.

    Attributes:
        size_bytes: of the run; at least what was asked for.
        requested_bytes: what was asked for; 0 while free.
        below, above: the runs that touch it, None at an end of its segment.
    """

    offset_bytes: int
    size_bytes: int
    is_free: bool = True
    requested_bytes: int = 0
    below: Block | None = field(default=None, repr=False)
    above: Block | None = field(default=None, repr=False)

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.size_bytes

    def free_beside(self) -> tuple[int, int]:
        """Free bytes that touch it from below and from above."""
        below, above = self.below, self.above
        return (
            below.size_bytes if below is not None and below.is_free else 0,
            above.size_bytes if above is not None and above.is_free else 0,
        )


class Allocator(Protocol):
    """What a replay needs of memory."""

    @property
    def requested_bytes(self) -> int:
        """Sum of what is in use, as asked for."""

    @property
    def high_water_bytes(self) -> int:
        """Memory it needed at most: the highest end of a block, or the largest sum of segments."""

    @property
    def fragmentation(self) -> float:
        """Share of the free bytes that lie outside the longest free run; 0 where none is free."""

    def allocate(self, size_bytes: int, side: Side = Side.BEST) -> Block | None:
        """A block of at least `size_bytes` >= 1, or None where no free run is long enough."""

    def free(self, block: Block) -> None:
        """Gives a block back."""

    def segments(self) -> Iterator[Iterator[Block]]:
        """Ranges of addresses that hang together, each as its blocks in order."""


class _FreeRuns:
    """Free blocks by size; splits and unites them."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._at: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self._by_size, (block.size_bytes, block.offset_bytes))
        self._at[block.offset_bytes] = block

    def remove(self, block: Block) -> None:
        del self._by_size[bisect_left(self._by_size, (block.size_bytes, block.offset_bytes))]
        del self._at[block.offset_bytes]

    def find(self, size_bytes: int, side: Side) -> Block | None:
        first = bisect_left(self._by_size, (size_bytes, -1))
        if first == len(self._by_size):
            return None
        if side is Side.BEST:
            return self._at[self._by_size[first][1]]
        offsets = (offset for _, offset in self._by_size[first:])
        return self._at[min(offsets) if side is Side.LOW else max(offsets)]

    def longest_bytes(self) -> int:
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, block: Block, size_bytes: int, *, from_above: bool = False) -> Block:
        """Cuts a block in use of `size_bytes` from a free one; the rest stays free."""
        self.remove(block)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes:
            rest = Block(block.offset_bytes, rest_bytes)
            block.size_bytes = size_bytes
            if from_above:
                block.offset_bytes += rest_bytes
                _link(block.below, rest)
                _link(rest, block)
            else:
                rest.offset_bytes += size_bytes
                _link(rest, block.above)
                _link(block, rest)
            self.add(rest)
        block.is_free = False
        return block

    def give(self, block: Block) -> Block:
        """Makes a block free and unites it with free neighbours; the united block."""
        block.is_free = True
        block.requested_bytes = 0
        if (below := block.below) is not None and below.is_free:
            self.remove(below)
            block.offset_bytes = below.offset_bytes
            block.size_bytes += below.size_bytes
            block.below = None
            _link(below.below, block)
        if (above := block.above) is not None and above.is_free:
            self.remove(above)
            block.size_bytes += above.size_bytes
            block.above = None
            _link(block, above.above)
        self.add(block)
        return block


def _link(below: Block | None, above: Block | None) -> None:
    if below is not None:
        below.above = above
    if above is not None:
        above.below = below


def _upward(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.above


def _bottom(block: Block) -> Block:
    while block.below is not None:
        block = block.below
    return block


class Arena:
    """One range of addresses.

    Args:
        capacity_bytes: at least 1.
        granularity_bytes: sizes are rounded up to multiples of it.
    """

    def __init__(self, capacity_bytes: int, granularity_bytes: int = 1) -> None:
        self.capacity_bytes = capacity_bytes
        self.requested_bytes = 0
        self.high_water_bytes = 0
        self._granularity_bytes = granularity_bytes
        self._free = _FreeRuns()
        self._some = Block(0, capacity_bytes)
        self._free.add(self._some)
        self._free_bytes = capacity_bytes

    @property
    def fragmentation(self) -> float:
        return _scattered(self._free.longest_bytes(), self._free_bytes)

    def allocate(self, size_bytes: int, side: Side = Side.BEST) -> Block | None:
        rounded = _round_up(size_bytes, self._granularity_bytes)
        found = self._free.find(rounded, side)
        if found is None:
            return None
        block = self._free.take(found, rounded, from_above=side is Side.HIGH)
        block.requested_bytes = size_bytes
        self.requested_bytes += size_bytes
        self._free_bytes -= rounded
        self.high_water_bytes = max(self.high_water_bytes, block.end_bytes)
        self._some = block
        return block

    def free(self, block: Block) -> None:
        self.requested_bytes -= block.requested_bytes
        self._free_bytes += block.size_bytes
        self._some = self._free.give(block)

    def segments(self) -> Iterator[Iterator[Block]]:
        yield _upward(_bottom(self._some))


@dataclass(eq=False)
class _Segment:
    """Memory got from the device at once; `some` is any of its blocks that is there now."""

    size_bytes: int
    is_small: bool
    some: Block


class CachingArena:
    """PyTorch's CUDA caching allocator with `capacity_bytes` of device memory (see above).

    Attributes:
        reserved_bytes: sum of the segments.
        num_given_back: segments given back to the device so far; each stops it for a moment.
    """

    SMALLEST_BYTES = 512
    SMALL_BYTES = _MIB
    SMALL_SEGMENT_BYTES = 2 * _MIB
    LARGE_BYTES = 10 * _MIB
    LARGE_SEGMENT_BYTES = 20 * _MIB
    ROUND_LARGE_BYTES = 2 * _MIB

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.requested_bytes = 0
        self.reserved_bytes = 0
        self.num_given_back = 0
        self.high_water_bytes = 0
        self._used_bytes = 0
        self._free = {True: _FreeRuns(), False: _FreeRuns()}
        self._segments: list[_Segment] = []
        self._segment_of: dict[Block, _Segment] = {}
        self._next_offset_bytes = 0

    @property
    def fragmentation(self) -> float:
        longest = max(runs.longest_bytes() for runs in self._free.values())
        device_bytes = self.capacity_bytes - self.reserved_bytes
        return _scattered(max(longest, device_bytes), self.capacity_bytes - self._used_bytes)

    def allocate(self, size_bytes: int, side: Side = Side.BEST) -> Block | None:
        rounded = _round_up(size_bytes, self.SMALLEST_BYTES)
        is_small = rounded <= self.SMALL_BYTES
        runs = self._free[is_small]
        found = runs.find(rounded, side) or self._new_segment(rounded, is_small)
        if found is None:
            return None
        segment = self._segment_of.pop(found)
        rest_bytes = found.size_bytes - rounded
        splits = rest_bytes >= self.SMALLEST_BYTES if is_small else rest_bytes > self.SMALL_BYTES
        taken_bytes = rounded if splits else found.size_bytes
        block = runs.take(found, taken_bytes, from_above=side is Side.HIGH)
        for piece in (block, block.below, block.above):
            if piece is not None:
                self._segment_of[piece] = segment
        segment.some = block
        block.requested_bytes = size_bytes
        self.requested_bytes += size_bytes
        self._used_bytes += taken_bytes
        return block

    def free(self, block: Block) -> None:
        self.requested_bytes -= block.requested_bytes
        self._used_bytes -= block.size_bytes
        segment = self._segment_of[block]
        for piece in (block.below, block.above):
            if piece is not None and piece.is_free:
                del self._segment_of[piece]
        segment.some = self._free[segment.is_small].give(block)

    def segments(self) -> Iterator[Iterator[Block]]:
        for segment in self._segments:
            yield _upward(_bottom(segment.some))

    def _new_segment(self, rounded_bytes: int, is_small: bool) -> Block | None:
        if is_small:
            size_bytes = self.SMALL_SEGMENT_BYTES
        elif rounded_bytes < self.LARGE_BYTES:
            size_bytes = self.LARGE_SEGMENT_BYTES
        else:
            size_bytes = _round_up(rounded_bytes, self.ROUND_LARGE_BYTES)
        if self.reserved_bytes + size_bytes > self.capacity_bytes:
            self._give_back_what_is_cached()
        if self.reserved_bytes + size_bytes > self.capacity_bytes:
            return None
        block = Block(self._next_offset_bytes, size_bytes)
        self._next_offset_bytes += size_bytes
        self.reserved_bytes += size_bytes
        self.high_water_bytes = max(self.high_water_bytes, self.reserved_bytes)
        segment = _Segment(size_bytes, is_small, block)
        self._segments.append(segment)
        self._segment_of[block] = segment
        self._free[is_small].add(block)
        return block

    def _give_back_what_is_cached(self) -> None:
        kept = []
        for segment in self._segments:
            whole = segment.some
            if whole.is_free and whole.size_bytes == segment.size_bytes:
                self._free[segment.is_small].remove(whole)
                del self._segment_of[whole]
                self.num_given_back += 1
                self.reserved_bytes -= segment.size_bytes
            else:
                kept.append(segment)
        self._segments = kept


def _round_up(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple


def _scattered(longest_bytes: int, free_bytes: int) -> float:
    return 1 - longest_bytes / free_bytes if free_bytes else 0.0
