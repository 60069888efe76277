"""DTR's h_eq: the same score over classes of evicted values (ICLR 2021, section 4.1).

    h = (c + cost of the distinct evicted classes beside it) / (m * s)

Cheap to keep (union-find), and what DTR's prototype in PyTorch uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memopt.arena import Side
from memopt.policies.neighbourhood import ClassNeighbourhood
from memopt.policies.state import State


class DtrEq:
    """The neighbourhood by union-find."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbourhood = ClassNeighbourhood(state)

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
