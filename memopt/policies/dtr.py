"""DTR: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021.

Evicts the value with the least

    h = (c + cost of the evicted ancestors and descendants) / (m * s)

c its own cost, m its bytes, s the time since its last use. Addresses play no part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memopt.arena import Side
from memopt.policies.neighbourhood import ExactNeighbourhood, Neighbourhood
from memopt.policies.state import State


class Dtr:
    """The score above, with the exact neighbourhood unless another is given."""

    uses_addresses = False

    def __init__(self, state: State, neighbourhood: Neighbourhood | None = None) -> None:
        self._state = state
        self._neighbourhood = neighbourhood or ExactNeighbourhood(state)

    def choose(self, needed_bytes: int) -> Sequence[int]:
        values = self._state.ordered_candidates()
        if not len(values):
            return ()
        weight = self._state.size_bytes[values] * self._state.staleness_us(values)
        return (int(values[np.argmin(self._neighbourhood.costs_us(values) / weight)]),)

    def residency_changed(self, value: int) -> None:
        self._neighbourhood.residency_changed(value)

    def side(self, value: int) -> Side:
        return Side.BEST
