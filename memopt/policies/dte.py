"""DTE: dynamic tensor evicting of MegTaiChi (ICS 2022), without its swapping.

Evicts the value with the least

    C_r * beta^ret / ((m + free_below + free_above) * s)

C_r its own cost and that of the evicted classes beside it (union-find), ret how often it was
recomputed already, free_below and free_above the free bytes that touch it: of values of one size,
the one whose eviction leaves the longest free run. The paper takes min(C_r, C_s), C_s the time to
swap; nothing is swapped here. It does not state beta.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memopt.arena import Side
from memopt.policies.neighbourhood import ClassNeighbourhood
from memopt.policies.state import State

_BETA = 1.1


class Dte:
    """Location-aware eviction."""

    uses_addresses = True

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbourhood = ClassNeighbourhood(state)

    def choose(self, needed_bytes: int) -> Sequence[int]:
        state = self._state
        values = state.ordered_candidates()
        if not len(values):
            return ()
        blocks = [state.blocks[value] for value in values.tolist()]
        beside = np.array([sum(block.free_beside()) for block in blocks if block is not None])
        freed_bytes = state.size_bytes[values] + beside
        # In logarithms, lest beta^ret overflow.
        score = (
            np.log(np.maximum(self._neighbourhood.costs_us(values), np.finfo(float).tiny))
            + state.num_recomputes[values] * np.log(_BETA)
            - np.log(freed_bytes * state.staleness_us(values))
        )
        return (int(values[np.argmin(score)]),)

    def residency_changed(self, value: int) -> None:
        self._neighbourhood.residency_changed(value)

    def side(self, value: int) -> Side:
        return Side.BEST
