"""Allocators against a memory of single bytes, each with its owner."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.arena import Allocator, Arena, Block, CachingArena, Side

CAPACITY = 60
MIB = 2**20

#: (True, size, side) allocates, (False, which, side) frees one of those in use.
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 25), st.sampled_from(Side)), min_size=1, max_size=60
)


def free_runs(owners: list[int]) -> list[tuple[int, int]]:
    """(offset, length) of each run of bytes that nobody owns."""
    runs, offset = [], 0
    for owner, group in itertools.groupby(owners):
        length = len(list(group))
        if owner < 0:
            runs.append((offset, length))
        offset += length
    return runs


def expected_offset(owners: list[int], size: int, side: Side) -> int | None:
    fitting = [run for run in free_runs(owners) if run[1] >= size]
    if not fitting:
        return None
    if side is Side.BEST:
        return min(fitting, key=lambda run: (run[1], run[0]))[0]
    if side is Side.LOW:
        return fitting[0][0]
    return sum(fitting[-1]) - size


def check_shape(arena: Allocator) -> list[list[Block]]:
    """Blocks touch, neighbours know each other, no two free ones lie side by side."""
    segments = [list(segment) for segment in arena.segments()]
    for blocks in segments:
        assert blocks[0].below is None
        assert blocks[-1].above is None
        for below, above in itertools.pairwise(blocks):
            assert below.end_bytes == above.offset_bytes
            assert below.above is above
            assert above.below is below
            assert not (below.is_free and above.is_free)
        for block in blocks:
            beside = (block.below, block.above)
            assert block.free_beside() == tuple(
                piece.size_bytes if piece is not None and piece.is_free else 0 for piece in beside
            )
    return segments


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, granularity=st.sampled_from([1, 4]))
def test_arena_equals_a_memory_of_single_bytes(
    steps: list[tuple[bool, int, Side]], granularity: int
) -> None:
    arena = Arena(CAPACITY, granularity)
    owners = [-1] * CAPACITY
    held: dict[int, tuple[Block, int]] = {}
    high = 0
    for number, (allocates, size, side) in enumerate(steps):
        if allocates:
            rounded = -(-size // granularity) * granularity
            offset = expected_offset(owners, rounded, side)
            block = arena.allocate(size, side)
            assert (None if block is None else block.offset_bytes) == offset
            if block is not None:
                assert block.size_bytes == rounded
                owners[block.offset_bytes : block.end_bytes] = [number] * rounded
                held[number] = (block, size)
                high = max(high, block.end_bytes)
        elif held:
            owner = sorted(held)[size % len(held)]
            block, _ = held.pop(owner)
            arena.free(block)
            owners = [-1 if who == owner else who for who in owners]
        (blocks,) = check_shape(arena)
        assert sum(block.size_bytes for block in blocks) == CAPACITY
        assert [(b.offset_bytes, b.size_bytes) for b in blocks if b.is_free] == free_runs(owners)
        assert arena.requested_bytes == sum(size for _, size in held.values())
        assert arena.high_water_bytes == high
        free = [length for _, length in free_runs(owners)]
        expected = 1 - max(free) / sum(free) if free else 0.0
        assert arena.fragmentation == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from([1, 512, 513, MIB, MIB + 1, 5 * MIB, 10 * MIB, 11 * MIB + 7]),
            st.integers(0, 100),
        ),
        max_size=40,
    )
)
def test_caching_arena_keeps_its_rules(steps: list[tuple[bool, int, int]]) -> None:
    capacity = 64 * MIB
    arena = CachingArena(capacity)
    held: list[tuple[Block, int]] = []
    for allocates, size, which in steps:
        if allocates:
            block = arena.allocate(size)
            if block is not None:
                assert block.offset_bytes % 512 == 0
                spare = block.size_bytes - size
                assert 0 <= spare < (1024 if size <= MIB else MIB + 1024)
                held.append((block, size))
        elif held:
            arena.free(held.pop(which % len(held))[0])
        segments = check_shape(arena)
        lengths = [sum(block.size_bytes for block in blocks) for blocks in segments]
        assert sum(lengths) == arena.reserved_bytes <= arena.high_water_bytes <= capacity
        assert all(n in (2 * MIB, 20 * MIB) or n % (2 * MIB) == 0 >= 10 * MIB - n for n in lengths)
        used = {block for blocks in segments for block in blocks if not block.is_free}
        assert used == {block for block, _ in held}
        assert arena.requested_bytes == sum(size for _, size in held)
        assert 0 <= arena.fragmentation <= 1


def test_small_and_large_requests_come_from_different_segments() -> None:
    arena = CachingArena(100 * MIB)
    small, large = arena.allocate(100), arena.allocate(3 * MIB)
    assert small is not None
    assert large is not None
    assert (small.size_bytes, large.size_bytes) == (512, 3 * MIB)
    assert arena.reserved_bytes == 22 * MIB
    own = arena.allocate(10 * MIB + 1)
    assert own is not None
    assert own.size_bytes == 10 * MIB + 512
    # Of the 17 MiB that were free, 7 remain: more than the one that would be left unsplit.
    assert arena.reserved_bytes == 22 * MIB


def test_a_rest_of_a_mebibyte_is_not_split_off() -> None:
    arena = CachingArena(100 * MIB)
    block = arena.allocate(19 * MIB)
    assert block is not None
    assert (block.size_bytes, block.requested_bytes) == (20 * MIB, 19 * MIB)


def test_cached_segments_are_given_back_before_memory_is_out() -> None:
    arena = CachingArena(30 * MIB)
    block = arena.allocate(3 * MIB)
    assert block is not None
    assert arena.allocate(24 * MIB) is None
    arena.free(block)
    assert arena.num_given_back == 0
    assert arena.allocate(24 * MIB) is not None
    assert arena.num_given_back == 1
    assert arena.reserved_bytes == 24 * MIB
    assert arena.high_water_bytes == 24 * MIB
