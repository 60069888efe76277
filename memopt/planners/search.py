"""Greedy search for drops: which removes the most excess over a budget for the time it adds.

    excess = sum over operators of max(0, memory - budget)
    score  = (excess removed)^a / recompute time added

A gap may be dropped whole; or up to the first recomputation that reads its value, which is made
again for that one and kept from there on; or up to where what makes it again is last at hand. What
a drop removes by itself is read from running sums, one for each size there is, and what it adds is
reckoned anew only where a drop has changed what is recomputed around it. Both are bounds, since the
chain at the end of a drop takes memory too; so the best by them are tried, until one is really
better than the others' bounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from memopt.graph import OpGraph
from memopt.schedule import Gap
from memopt.simulate import ScheduleState

_TRIED = 6
_NUM_SIZES = 32
_SMALLEST_COST_US = 1e-3
#: Share of the plain peak below which a value is not worth a drop.
_NEGLIGIBLE = 1e-5

#: Of each gap, where the drop in it ends; None where nothing is dropped.
Ends = tuple[int | None, ...]


@dataclass(frozen=True)
class Greed:
    """A way to choose drops.

    Attributes:
        exponent: a of the score.
        whole: drops end with their gaps.
        at_peak: only what is alive at the peak is dropped.
    """

    exponent: float = 1.0
    whole: bool = False
    at_peak: bool = False


class Search:
    """A schedule under construction, what may still be dropped, and a way back.

    Attributes:
        state: the schedule so far.
        gaps: whole ones, by number.
        ends: of each gap, where the drop in it ends; None where nothing is dropped.
        num_changes: that were tried so far.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.state = ScheduleState(graph)
        size_bytes, least_bytes = self.state.lives.size_bytes, self.peak_bytes() * _NEGLIGIBLE
        self.gaps = [
            gap
            for gaps in self.state.lives.gaps
            for gap in gaps
            if size_bytes[gap.value] > least_bytes
        ]
        self.ends: list[int | None] = [None] * len(self.gaps)
        sizes = np.array([size_bytes[gap.value] for gap in self.gaps], dtype=np.int64)
        self._sizes, self._size_of = _few_sizes(sizes)
        # More can be dropped of a gap from here, up to its end, to where it is read again, or to
        # where what makes it is last at hand.
        self._from = np.array([gap.start + 1 for gap in self.gaps], dtype=np.int64)
        self._to = np.array([[gap.end for gap in self.gaps]] * 3, dtype=np.int64).reshape(3, -1)
        self._prices_us = np.zeros(self._to.shape)
        # Of prices that are only known to be at least this; infinite for those that are right.
        self._least_us = np.full(len(self.gaps), math.inf)
        self._stale: set[int] = set()
        self._of_value: dict[int, list[int]] = defaultdict(list)
        self._ending: dict[int, list[int]] = defaultdict(list)
        self._priced_by: dict[int, set[int]] = defaultdict(set)
        for number, gap in enumerate(self.gaps):
            self._of_value[gap.value].append(number)
            self._ending[gap.end].append(number)
            self._set_price(number)
        self._number = {(gap.value, gap.start): n for n, gap in enumerate(self.gaps)}
        self.num_changes = self._most_changes = 0

    @property
    def recompute_us(self) -> float:
        return self.state.recompute_us

    def peak_bytes(self) -> int:
        return int(self.state.memory_bytes().max(initial=0))

    def dropped(self) -> list[int]:
        """Numbers of the gaps in which something is dropped."""
        return [number for number, end in enumerate(self.ends) if end is not None]

    def drop(self, number: int) -> Gap | None:
        """What is dropped of a gap."""
        end = self.ends[number]
        return None if end is None else self.gaps[number]._replace(end=end)

    def set_end(self, number: int, end: int | None) -> bool:
        """Drop a gap's value up to an operator, or not at all; False where that cannot be."""
        gap, old = self.gaps[number], self.ends[number]
        self.num_changes += 1
        if old is not None and not self.state.keep(gap._replace(end=old)):
            return False
        if end is not None and not self.state.drop(gap._replace(end=end)):
            if old is not None:
                self.state.undo()
            return False
        self._note(number, end)
        return True

    def _note(self, number: int, end: int | None) -> None:
        self.ends[number] = end
        self._from[number] = self.gaps[number].start + 1 if end is None else end

    def load(self, ends: Ends) -> None:
        """Drop what is said, and nothing else; `ends` is of a schedule that was found before."""
        self.return_to(0)
        for number, end in enumerate(ends):
            if end is not None:
                dropped = self.set_end(number, end)
                assert dropped, "what can be dropped later can be dropped now"

    def limit_effort(self, num_changes: int) -> None:
        """From now on, `is_exhausted` tells whether so many changes have been tried."""
        self._most_changes = self.num_changes + num_changes

    @property
    def is_exhausted(self) -> bool:
        return self.num_changes >= self._most_changes

    def mark(self) -> int:
        """A point to return to."""
        return self.state.num_steps

    def return_to(self, mark: int) -> None:
        """Undo what was done since."""
        while self.state.num_steps > mark:
            gap, was_dropped, *_ = self.state.undo()
            self._note(self._number[gap.value, gap.start], None if was_dropped else gap.end)

    def floor_bytes(self) -> int:
        """The most memory at any operator if every gap were dropped at once: no plan has less."""
        least = self.state.memory_bytes()
        for gap in self.gaps:
            least[gap.start + 1 : gap.end] -= self.state.lives.size_bytes[gap.value]
        return int(least.max(initial=0))

    def prices_us(self, enough_us: float) -> np.ndarray:
        """What dropping each gap whole would add to the recompute time.

        Args:
            enough_us: where it is as much or more, part of it will do.
        """
        self._refresh(enough_us, np.ones(len(self.gaps), dtype=bool))
        return self._prices_us[0]

    def fit(
        self,
        budget_bytes: int,
        greed: Greed = Greed(),
        *,
        limit_us: float = math.inf,
        spare: Collection[int] = (),
    ) -> bool:
        """Drop gaps until the peak is within the budget; False where nothing helps any more.

        It is then where the peak was least.

        Args:
            greed: how to choose them.
            limit_us: recompute time that must not be reached.
            spare: numbers of gaps to leave alone.
        """
        blocked = np.zeros(self._to.shape, dtype=bool)
        blocked[:, list(spare)] = True
        blocked[1:] |= greed.whole
        least, mark_of_least = self.peak_bytes(), self.mark()
        while True:
            memory = self.state.memory_bytes()
            peak = int(memory.max(initial=0))
            if peak < least:
                least, mark_of_least = peak, self.mark()
            if peak <= budget_bytes:
                return self.recompute_us < limit_us
            chosen = self._best(memory, budget_bytes, greed, blocked, limit_us)
            if chosen is None:
                self.return_to(mark_of_least)
                return False
            self.set_end(*chosen)

    def _best(
        self,
        memory: np.ndarray,
        budget_bytes: int,
        greed: Greed,
        blocked: np.ndarray,
        limit_us: float,
    ) -> tuple[int, int] | None:
        """Number and end of the drop of the best score; None where there is none.

        Args:
            blocked: drops not to try; those that turn out to remove nothing become so.
        """
        excess = np.maximum(memory - budget_bytes, 0)
        total, room_us = int(excess.sum()), limit_us - self.recompute_us
        removed = self._removed(excess, room_us).astype(np.float64)
        prices_us = np.maximum(self._prices_us, _SMALLEST_COST_US)
        usable = self._prices_us < room_us
        if greed.at_peak:
            peak = int(memory.argmax())
            usable &= (self._from <= peak) & (peak < self._to)
        bounds = np.where(usable, removed**greed.exponent / prices_us, 0.0)
        while True:
            bounds[blocked] = 0
            order = np.argsort(-bounds, axis=None, kind="stable")
            order = order[: np.count_nonzero(bounds)]
            if not _suffices(removed.flat[order], prices_us.flat[order], total, room_us):
                return None
            best = order[:_TRIED]
            chosen = self._try(best, bounds, budget_bytes, greed, total, limit_us)
            if chosen is not None:
                return chosen
            blocked.flat[best] = True

    def _removed(self, excess: np.ndarray, room_us: float) -> np.ndarray:
        """At most what each drop removes of the excess; prices of those that do are then right."""
        above = np.flatnonzero(excess)
        first, last = int(above[0]), int(above[-1]) + 1
        sums = np.zeros((len(self._sizes), last - first + 1), dtype=np.int64)
        np.cumsum(np.minimum(excess[first:last], self._sizes[:, None]), axis=1, out=sums[:, 1:])

        def up_to(operators: np.ndarray) -> np.ndarray:
            return sums[self._size_of, np.minimum(np.maximum(operators, first), last) - first]

        starts = up_to(self._from)
        self._refresh(room_us, up_to(self._to[0]) > starts)
        return np.maximum(up_to(self._to) - starts, 0)

    def _try(
        self,
        best: np.ndarray,
        bounds: np.ndarray,
        budget_bytes: int,
        greed: Greed,
        total: int,
        limit_us: float,
    ) -> tuple[int, int] | None:
        """Of the drops that really remove excess, the one of the best score."""
        best_score, found = 0.0, None
        time_us = self.recompute_us
        for place in best:
            if bounds.flat[place] <= best_score:
                break
            number, end = int(place % len(self.gaps)), int(self._to.flat[place])
            mark = self.mark()
            if not self.set_end(number, end):
                continue
            left = int(np.maximum(self.state.memory_bytes() - budget_bytes, 0).sum())
            added_us = self.recompute_us - time_us
            self.return_to(mark)
            if left >= total or time_us + added_us >= limit_us:
                continue
            score = (total - left) ** greed.exponent / max(added_us, _SMALLEST_COST_US)
            if score > best_score:
                best_score, found = score, (number, end)
        return found

    def _refresh(self, room_us: float, which: np.ndarray) -> None:
        """Reckon prices anew where something has changed, as far as they are below `room_us`."""
        changes, stale = self.state.take_changes(), self._stale
        for value in changes.values:
            stale |= self._priced_by.pop(value, set())
        for value in changes.disturbed:
            if value in self._of_value:
                stale.update(self._of_value[value])
        for moment in changes.moments:
            if moment in self._ending:
                stale.update(self._ending[moment])
        stale.update(np.flatnonzero(self._least_us < room_us).tolist())
        asked = which.tolist()
        known = [number for number in stale if asked[number]]
        for number in known:
            self._set_price(number, room_us)
        stale.difference_update(known)

    def _set_price(self, number: int, room_us: float = math.inf) -> None:
        gap, end, seen = self.gaps[number], self.ends[number], set[int]()
        if end is not None:
            gap = gap._replace(start=end)
        prices_us = [math.inf] * len(self._to)
        if gap.start < gap.end:
            ends = (gap.end, self.state.first_reread(gap), self.state.last_at_hand(gap, seen))
            for way, to in enumerate(ends):
                if to is not None:
                    self._to[way, number] = to
                    early = Gap(gap.value, gap.start, to)
                    prices_us[way] = self.state.added_us(early, seen, room_us)
        self._prices_us[:, number] = prices_us
        self._least_us[number] = min(
            (us for us in prices_us if room_us <= us < math.inf), default=math.inf
        )
        for value in {gap.value, *seen}:
            self._priced_by[value].add(number)


def _suffices(removed: np.ndarray, prices_us: np.ndarray, total: int, room_us: float) -> bool:
    """Whether drops, best first and even in parts, remove all excess in less than some time."""
    sums = removed.cumsum()
    if not len(sums) or (math.isfinite(room_us) and sums[-1] < total):
        return False
    if math.isinf(room_us):
        return True
    last = int(np.searchsorted(sums, total))
    before = sums[last] - removed[last]
    part = (total - before) / removed[last]
    return bool(prices_us[:last].sum() + part * prices_us[last] < room_us)


def _few_sizes(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most some dozen sizes, and which of them, not smaller, stands for each."""
    distinct = np.unique(sizes)
    if len(distinct) > _NUM_SIZES:
        powers = np.geomspace(distinct[0], distinct[-1], _NUM_SIZES)
        distinct = np.unique(np.ceil(powers).astype(np.int64))
    return distinct, np.searchsorted(distinct, sizes).clip(0, max(len(distinct) - 1, 0))
