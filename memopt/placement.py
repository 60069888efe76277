"""Addresses for an iteration that is known: lifetimes and sizes to offsets, without overlap.

    lifetimes = graph_lifetimes(graph)
    placement = place(lifetimes)      # placement.height_bytes >= placement.lower_bound_bytes

Least height is NP-hard (dynamic storage allocation); each storage in turn goes to the shortest gap
between those placed that live at the same time and, failing one, above them; several orders are
tried and the lowest result is kept (Pisarchyk and Lee, 2020, "Efficient Memory Management for Deep
Neural Net Inference"). No placement is below the most bytes alive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memopt.graph import OpGraph, Role, first_made

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Lifetime:
    """When a piece of memory is needed: from operator `first` to operator `last`, both included."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """Where each lifetime lies.

    Attributes:
        offsets_bytes: of each, as given.
        height_bytes: highest end.
        lower_bound_bytes: most bytes alive at once.
        order: name of the order that gave it.
    """

    offsets_bytes: tuple[int, ...]
    height_bytes: int
    lower_bound_bytes: int
    order: str

    @property
    def over_bound(self) -> float:
        """Height over the bound, at least 1."""
        return self.height_bytes / self.lower_bound_bytes if self.lower_bound_bytes else 1.0


def graph_lifetimes(graph: OpGraph) -> dict[int, Lifetime]:
    """Of each storage that the plain iteration makes, by number."""
    return {
        number: Lifetime(first, max(first, graph.last_use[number]), storage.size_bytes)
        for number, (storage, first) in enumerate(
            zip(graph.storages, first_made(graph), strict=True)
        )
        if first is not None and storage.role is not Role.RESTING
    }


def place(lifetimes: Sequence[Lifetime], *, alignment_bytes: int = 1) -> Placement:
    """The lowest of several greedy placements; every offset is a multiple of the alignment."""
    first = np.array([life.first for life in lifetimes], dtype=np.int64)
    last = np.array([life.last for life in lifetimes], dtype=np.int64)
    asked = np.array([life.size_bytes for life in lifetimes], dtype=np.int64)
    sizes = -(-asked // alignment_bytes) * alignment_bytes
    bound, crowd = _most_alive(first, last, sizes)
    span = last - first + 1
    orders: dict[str, _Numbers] = {
        "size": np.lexsort((first, -span, -sizes)),
        "crowd": np.lexsort((first, -sizes, -crowd)),
        "area": np.lexsort((first, -sizes * span)),
        "span": np.lexsort((first, -sizes, -span)),
        "time": np.lexsort((-sizes, first)),
    }
    best: Placement | None = None
    for name, order in orders.items():
        offsets = _place_in_order(order, first, last, sizes)
        height = int((offsets + sizes).max(initial=0))
        if best is None or height < best.height_bytes:
            best = Placement(tuple(offsets.tolist()), height, bound, name)
        if best.height_bytes == bound:
            break
    assert best is not None
    return best


def _most_alive(first: _Numbers, last: _Numbers, sizes: _Numbers) -> tuple[int, _Numbers]:
    """Most bytes alive at once, and for each lifetime the most while it lives."""
    change = np.zeros(int(last.max(initial=0)) + 2, dtype=np.int64)
    np.add.at(change, first, sizes)
    np.add.at(change, last + 1, -sizes)
    alive = np.cumsum(change)
    crowd = [int(alive[a : b + 1].max()) for a, b in zip(first, last, strict=True)]
    return int(alive.max(initial=0)), np.array(crowd, dtype=np.int64)


def _place_in_order(order: _Numbers, first: _Numbers, last: _Numbers, sizes: _Numbers) -> _Numbers:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    placed = np.zeros(len(sizes), dtype=bool)
    for item in order:
        if not sizes[item]:
            continue
        beside = np.flatnonzero(placed & (first <= last[item]) & (last >= first[item]))
        beside = beside[np.argsort(offsets[beside], kind="stable")]
        below = np.concatenate(([0], np.maximum.accumulate((offsets + sizes)[beside])))
        gaps = offsets[beside] - below[:-1]
        fitting = np.flatnonzero(gaps >= sizes[item])
        chosen = fitting[np.argmin(gaps[fitting])] if len(fitting) else len(beside)
        offsets[item] = below[chosen]
        placed[item] = True
    return offsets
