"""Coop: Zhang et al., "Memory is not a Commodity", NeurIPS 2023.

Evicts the run of neighbouring blocks that makes room for the request at the least

    sum of (c + cost of the evicted neighbourhood) / s

found by a window that slides over the addresses; what cannot be evicted breaks it. Where no window
is long enough, the value of the least score goes: whole segments of a caching allocator can become
room together though no window spans them.

Values that are cheap for their bytes are made at the low end of memory and costly ones at the high
end, so that cheap ones lie together. The paper sorts operators into the two kinds by hand; here one
is cheap if its cost per byte made is at most that of all operators so far taken together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from memopt.arena import Side
from memopt.policies.neighbourhood import ExactNeighbourhood
from memopt.policies.state import State


class Coop:
    """A window over addresses."""

    uses_addresses = True

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbourhood = ExactNeighbourhood(state)
        self._seen: set[int] = set()
        self._seen_us = 0.0
        self._seen_bytes = 0

    def choose(self, needed_bytes: int) -> Sequence[int]:
        state = self._state
        values = state.ordered_candidates()
        scores = self._neighbourhood.costs_us(values) / state.staleness_us(values)
        score_of = dict(zip(values.tolist(), scores.tolist(), strict=True))
        best: Sequence[int] = ()
        best_score = float("inf")
        for segment in state.arena.segments():
            window: deque[tuple[int, float, int | None]] = deque()
            window_bytes, window_score = 0, 0.0
            for block in segment:
                value = state.value_of.get(block)
                score = 0.0 if block.is_free else score_of.get(-1 if value is None else value)
                if score is None:
                    window.clear()
                    window_bytes, window_score = 0, 0.0
                    continue
                window.append((block.size_bytes, score, value))
                window_bytes += block.size_bytes
                window_score += score
                while window_bytes - window[0][0] >= needed_bytes:
                    first_bytes, first_score, _ = window.popleft()
                    window_bytes -= first_bytes
                    window_score -= first_score
                if window_bytes >= needed_bytes and window_score < best_score:
                    best_score = window_score
                    best = [inside for _, _, inside in window if inside is not None]
        if not best and score_of:
            return (min(score_of, key=score_of.__getitem__),)
        return best

    def residency_changed(self, value: int) -> None:
        self._neighbourhood.residency_changed(value)

    def side(self, value: int) -> Side:
        state = self._state
        cost_us, size_bytes = float(state.cost_us[value]), int(state.size_bytes[value])
        if value not in self._seen:
            self._seen.add(value)
            self._seen_us += cost_us
            self._seen_bytes += size_bytes
        is_cheap = cost_us * self._seen_bytes <= self._seen_us * size_bytes
        return Side.LOW if is_cheap else Side.HIGH
