"""Cost of what would have to be made again with a value, and of what would need it.

Two ways, both of Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021):

    ExactNeighbourhood      evicted ancestors and descendants, reached through evicted values only
    ClassNeighbourhood      connected evicted values by union-find; splitting one off subtracts
                            its cost and leaves the rest together, as their appendix C has it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memopt.policies.state import State


class Neighbourhood(Protocol):
    """Costs that follow what comes and goes."""

    def costs_us(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Own cost of each value and that of its evicted neighbourhood, in microseconds."""

    def residency_changed(self, value: int) -> None:
        """A value's contents came or went."""


class ExactNeighbourhood:
    """Own cost and that of the evicted neighbourhood, each operator once; kept until it changes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._costs_us = np.zeros(0)
        self._stale: set[int] = set()
        self._changed: set[int] = set()

    def costs_us(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each value, in microseconds."""
        num_known, num_values = len(self._costs_us), len(self._state.parents)
        if num_known < num_values:
            self._costs_us = np.concatenate([self._costs_us, np.zeros(num_values - num_known)])
            self._stale.update(range(num_known, num_values))
        for value in self._changed:
            self._mark(value)
        self._changed.clear()
        for value in self._stale.intersection(values.tolist()):
            self._costs_us[value] = self._cost_us(value)
            self._stale.discard(value)
        return self._costs_us[values]

    def residency_changed(self, value: int) -> None:
        """Noted, until costs are asked for."""
        self._changed.add(value)

    def _mark(self, value: int) -> None:
        """Marks those in whose neighbourhood the value is.

        As residency is now: where more has changed on the way to another value, the change that is
        nearest to that one reaches it.
        """
        self._stale.add(value)
        for links in (self._state.parents, self._state.children):
            for other in self._reached(value, links):
                if self._state.is_resident[other]:
                    self._stale.add(other)

    def _cost_us(self, value: int) -> float:
        state = self._state
        makers = {state.maker[value]: float(state.cost_us[value])}
        for links in (state.parents, state.children):
            for other in self._reached(value, links):
                if not state.is_resident[other]:
                    makers[state.maker[other]] = float(state.cost_us[other])
        return sum(makers.values())

    def _reached(self, value: int, links: Sequence[Sequence[int]]) -> Iterator[int]:
        """What links lead to from a value, going on through what is not there."""
        resident = self._state.is_resident
        seen, frontier = set(), [value]
        while frontier:
            for other in links[frontier.pop()]:
                if other not in seen:
                    seen.add(other)
                    yield other
                    if not resident[other]:
                        frontier.append(other)


class ClassNeighbourhood:
    """Own cost and that of the distinct classes of evicted values beside it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._node: dict[int, int] = {}
        self._parent: list[int] = []
        self._sum_us: list[float] = []

    def costs_us(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each value, in microseconds."""
        found = self._state.cost_us[values]
        for index, value in enumerate(values.tolist()):
            beside = self._state.evicted_neighbours(value)
            if beside:
                roots = {self._root(self._node[other]) for other in beside}
                found[index] += sum(self._sum_us[root] for root in roots)
        return found

    def residency_changed(self, value: int) -> None:
        """Joins an evicted value to its neighbours' classes, or takes one that came out."""
        cost_us = float(self._state.cost_us[value])
        if self._state.is_evicted(value):
            node = len(self._parent)
            self._parent.append(node)
            self._sum_us.append(cost_us)
            self._node[value] = node
            for other in self._state.evicted_neighbours(value):
                self._unite(node, self._node[other])
        elif value in self._node:
            root = self._root(self._node.pop(value))
            self._sum_us[root] = max(0.0, self._sum_us[root] - cost_us)

    def _root(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = node = self._parent[self._parent[node]]
        return node

    def _unite(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        if one != other:
            self._parent[other] = one
            self._sum_us[one] += self._sum_us[other]
