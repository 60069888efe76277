"""Offset placement: no overlap; beside the best of all orders on tiny cases; on real traces."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memopt.graph import Operator, OpGraph, Role, Storage, Value
from memopt.placement import Lifetime, Placement, graph_lifetimes, place
from memopt.traces import read_trace


def check(lifetimes: list[Lifetime], placement: Placement, alignment: int = 1) -> None:
    """No two that live at the same time overlap; the bound is the most alive at once."""
    for index, (life, offset) in enumerate(zip(lifetimes, placement.offsets_bytes, strict=True)):
        assert offset >= 0
        assert offset % alignment == 0
        assert offset + life.size_bytes <= placement.height_bytes
        for other in range(index):
            beside = lifetimes[other]
            together = life.first <= beside.last and beside.first <= life.last
            start = placement.offsets_bytes[other]
            apart = offset >= start + beside.size_bytes or start >= offset + life.size_bytes
            assert not together or apart or not life.size_bytes or not beside.size_bytes
    rounded = [-(-life.size_bytes // alignment) * alignment for life in lifetimes]
    alive = [
        sum(r for r, life in zip(rounded, lifetimes, strict=True) if life.first <= t <= life.last)
        for t in {life.first for life in lifetimes}
    ]
    assert placement.lower_bound_bytes == max(alive, default=0) <= placement.height_bytes


LIFETIMES = st.lists(
    st.builds(
        lambda first, span, size: Lifetime(first, first + span, size),
        st.integers(0, 12),
        st.integers(0, 8),
        st.integers(0, 9),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(lifetimes=LIFETIMES, alignment=st.sampled_from([1, 4]))
def test_a_placement_has_no_overlap(lifetimes: list[Lifetime], alignment: int) -> None:
    check(lifetimes, place(lifetimes, alignment_bytes=alignment), alignment)


def lowest_of_all_orders(lifetimes: list[Lifetime]) -> int:
    """Some order of first fit gives the least height, so trying all is exact."""
    heights = []
    for order in itertools.permutations(lifetimes):
        placed: list[tuple[int, Lifetime]] = []
        for life in order:
            beside = sorted(
                (offset, offset + other.size_bytes)
                for offset, other in placed
                if other.first <= life.last and life.first <= other.last
            )
            offset = 0
            for start, end in beside:
                if start - offset >= life.size_bytes:
                    break
                offset = max(offset, end)
            placed.append((offset, life))
        heights.append(max((o + life.size_bytes for o, life in placed), default=0))
    return min(heights)


@settings(max_examples=40, deadline=None)
@given(lifetimes=LIFETIMES.filter(lambda lives: len(lives) <= 5))
def test_tiny_cases_are_near_the_optimum(lifetimes: list[Lifetime]) -> None:
    height = place(lifetimes).height_bytes
    assert lowest_of_all_orders(lifetimes) <= height <= 1.25 * lowest_of_all_orders(lifetimes)


def test_lifetimes_of_a_graph_leave_resting_storages_out() -> None:
    graph = OpGraph(
        storages=(Storage(9, Role.RESTING), Storage(5), Storage(7, Role.RESULT), Storage(1)),
        values=(Value(0), Value(1), Value(1, 1), Value(2), Value(3)),
        operators=(
            Operator("a", (0,), (1,), 1.0),
            Operator("b", (1,), (2, 4), 1.0),
            Operator("c", (2,), (3,), 1.0),
        ),
        last_use=(3, 2, 3, -1),
    )
    assert graph_lifetimes(graph) == {
        1: Lifetime(0, 2, 5),
        2: Lifetime(2, 3, 7),
        3: Lifetime(1, 1, 1),
    }


@pytest.mark.parametrize("net", ["resnet32", "transformer", "tv_densenet121", "unet"])
def test_published_traces_are_placed_at_most_3_percent_over_the_bound(
    shared_data: Path, net: str
) -> None:
    (path,) = (shared_data / "dtr_traces").glob(f"{net}-*.gz")
    graph = read_trace(path)
    lifetimes = list(graph_lifetimes(graph).values())
    placement = place(lifetimes)
    assert placement.lower_bound_bytes == graph.plain_peak_bytes()
    assert placement.over_bound <= 1.03
    events = sorted(
        (life.first, life.last, o, life.size_bytes)
        for life, o in zip(lifetimes, placement.offsets_bytes, strict=True)
        if life.size_bytes
    )
    for number, (_, last, offset, size) in enumerate(events):
        for first, _, start, length in events[number + 1 :]:
            if first > last:
                break
            assert start >= offset + size or offset >= start + length
