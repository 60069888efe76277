"""The cheapest choice of options for a chain under a byte budget: dynamic programming.

    front = search(chain)                  # every trade of memory for time
    front.best(30 * 2**30)                 # a `Found`, or an error that names the least

States are built from the last stage to the first by the recurrence in chain.py. A state is
dominated by one of the same layout that needs no more, leaves no more for later, and is no slower.
What is left are all trades of a chain, whatever the budget; so the loss's options, a few hundred
ways through the logits, are just those of the last stage. The search is exact where states are few;
beyond that one state is kept in each cell of a grid of `resolution` steps of memory, whose bytes
stay exact. A dynamic program over layers and memory is Galvatron's idea (Miao et al., VLDB 2022),
fronts are TensorOpt's (Cai et al., 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from memopt.errors import BudgetTooSmallError
from memopt.partition.chain import Chain, Conversion, Option, Outcome, outcome
from memopt.units import format_bytes

_RESOLUTION = 2048
_FEW = 1024


@dataclass(frozen=True)
class Found:
    """A choice and its cost."""

    choice: tuple[Option, ...]
    outcome: Outcome


@dataclass
class _States:
    """Non-dominated ways to run stages i..L, by the layout that stage i takes.

    Attributes:
        need, later, time: as in chain.py, without the chain's constants.
        option: number of stage i's option.
        parent: number of the state of the stages after it.
        parent_layout: layout under which that state is.
    """

    need: np.ndarray
    later: np.ndarray
    time: np.ndarray
    option: np.ndarray
    parent: np.ndarray
    parent_layout: np.ndarray

    def __len__(self) -> int:
        return len(self.need)

    def chosen(self, index: np.ndarray) -> _States:
        return _States(*(values[index] for values in vars(self).values()))


class Front:
    """All trades of memory for time of a chain."""

    def __init__(self, chain: Chain, levels: list[dict[str, _States]], layouts: list[str]) -> None:
        self._chain = chain
        self._levels = levels
        self._layouts = layouts

    def best(self, budget_bytes: int) -> Found:
        """The fastest choice whose peak is within the budget.

        Raises:
            BudgetTooSmallError: there is none; names the least peak found, and what takes it.
        """
        room = budget_bytes - self._chain.constant_bytes
        fitting = [
            (states.time[index], layout, index)
            for layout, states in self._levels[0].items()
            for index in np.flatnonzero(states.need <= room)
        ]
        if not fitting:
            least = self.least()
            raise BudgetTooSmallError(
                f"budget {format_bytes(budget_bytes)}: the least is "
                f"{format_bytes(least.outcome.peak_bytes, round_up=True)}",
                least.outcome.peak_bytes,
            )
        _, layout, index = min(fitting)
        return self._found(layout, int(index))

    def least(self) -> Found:
        """The choice of the smallest peak, the fastest of those."""
        candidates = [
            (states.need[index], states.time[index], layout, index)
            for layout, states in self._levels[0].items()
            for index in np.flatnonzero(states.need == states.need.min())
        ]
        _, _, layout, index = min(candidates)
        return self._found(layout, int(index))

    def trades(self) -> list[tuple[int, float]]:
        """(peak bytes, microseconds) from the fastest to the smallest."""
        need = np.concatenate([states.need for states in self._levels[0].values()])
        time = np.concatenate([states.time for states in self._levels[0].values()])
        found: list[tuple[int, float]] = []
        for index in np.lexsort((need, time)):
            peak = int(need[index]) + self._chain.constant_bytes
            if not found or peak < found[-1][0]:
                found.append((peak, float(time[index]) + self._chain.constant_us))
        return found

    def _found(self, layout: str, index: int) -> Found:
        choice: list[Option] = []
        number = 0
        while number < len(self._levels):
            states = self._levels[number][layout]
            choice.append(self._chain.stages[number].options[int(states.option[index])])
            layout = self._layouts[int(states.parent_layout[index])]
            index = int(states.parent[index])
            number += choice[-1].span
        return Found(tuple(choice), outcome(self._chain, choice))


def search(
    chain: Chain,
    allowed: Callable[[Option], bool] = lambda option: True,
    *,
    resolution: int = _RESOLUTION,
) -> Front:
    """Every trade of memory for time of the allowed options.

    Raises:
        ValueError: a stage has no allowed option, or no chain of layouts goes through.
    """
    layouts = sorted(
        {layout for stage in chain.stages for o in stage.options for layout in (o.takes, o.gives)}
    )
    options = [_useful(stage.options, allowed) for stage in chain.stages]
    step_bytes = max(1, _most_bytes(chain, options) // resolution)
    levels: list[dict[str, _States]] = [{} for _ in chain.stages]
    for number in range(len(chain.stages) - 1, -1, -1):
        stage, kept = chain.stages[number], options[number]
        if not kept:
            raise ValueError(f"{stage.name}: no allowed option")
        level: dict[str, _States] = {}
        for takes in sorted({stage.options[o].takes for o in kept}):
            own = [o for o in kept if stage.options[o].takes == takes]
            states = _extend(chain, number, own, levels, layouts)
            if len(states):
                level[takes] = _pruned(states, step_bytes)
        if not level:
            raise ValueError(f"{stage.name}: its layouts cannot be converted to the next ones")
        levels[number] = level
    return Front(chain, levels, layouts)


def _extend(
    chain: Chain,
    number: int,
    own: Sequence[int],
    levels: Sequence[dict[str, _States]],
    layouts: list[str],
) -> _States:
    """States of stage `number`: each of its options before each state of the stages after it."""
    stage, parts = chain.stages[number], list[_States]()
    for index in own:
        option = stage.options[index]
        if number == len(chain.stages) - 1:
            work = max(option.work_bytes, option.kept_bytes)
            parts.append(
                _States(
                    np.array([option.resting_bytes + work]),
                    np.array([option.resting_bytes + option.gradient_bytes]),
                    np.array([option.time_us]),
                    np.array([index]),
                    np.array([0]),
                    np.array([0]),
                )
            )
            continue
        for layout, states in levels[number + option.span].items():
            conversion = chain.convert(number + option.span - 1, option.gives, layout)
            if conversion is not None:
                parts.append(_before(option, index, conversion, states, layouts.index(layout)))
    if not parts:
        return _States(*[np.empty(0, dtype=np.int64)] * 6)
    return _States(*(np.concatenate(column) for column in zip(*map(_columns, parts), strict=True)))


def _columns(states: _States) -> list[np.ndarray]:
    return list(vars(states).values())


def _before(
    option: Option, index: int, conversion: Conversion, states: _States, layout: int
) -> _States:
    work = max(option.work_bytes, option.kept_bytes + conversion.work_bytes)
    count = len(states)
    return _States(
        option.resting_bytes + np.maximum(work + states.later, option.kept_bytes + states.need),
        states.later + option.resting_bytes + option.gradient_bytes,
        states.time + option.time_us + conversion.time_us,
        np.full(count, index),
        np.arange(count),
        np.full(count, layout),
    )


def _pruned(states: _States, step_bytes: int) -> _States:
    """States that no other dominates; where those are many, the fastest of each cell."""
    if len(states) <= 64 * _FEW:
        states = _without_dominated(states, 1)
    return states if len(states) <= _FEW else _without_dominated(states, step_bytes)


def _without_dominated(states: _States, step_bytes: int) -> _States:
    """Memory compared in steps; the state of the least need always stays."""
    need, later = states.need // step_bytes, states.later // step_bytes
    order = np.lexsort((states.need, states.later, states.time, need, later))
    kept: list[np.ndarray] = []
    # Of each need, the fastest so far among states that leave as little for later.
    needs, place = np.unique(need, return_inverse=True)
    fastest = np.full(len(needs), np.inf)
    starts = np.flatnonzero(np.r_[True, np.diff(later[order]) != 0])
    for start, end in zip(starts, np.r_[starts[1:], len(order)], strict=True):
        group = order[start:end]
        time, where = states.time[group], place[group]
        # Sorted by need, then time: a state must be faster than all of no more need.
        before = np.r_[np.inf, np.minimum.accumulate(time)[:-1]]
        is_kept = (time < before) & (time < fastest[where])
        kept.append(group[is_kept])
        fastest[where[is_kept]] = np.minimum(fastest[where[is_kept]], time[is_kept])
        fastest = np.minimum.accumulate(fastest)
    found = np.concatenate(kept)
    least = np.lexsort((states.time, states.need))[0]
    return states.chosen(found if least in found else np.append(found, least))


def _useful(options: Sequence[Option], allowed: Callable[[Option], bool]) -> list[int]:
    """Numbers of the allowed options that no other of the same layouts dominates."""

    def cost(o: Option) -> tuple[float, ...]:
        return o.time_us, o.resting_bytes, o.kept_bytes, o.work_bytes, o.gradient_bytes

    found: list[int] = []
    candidates = [i for i, option in enumerate(options) if allowed(option)]
    for i in sorted(candidates, key=lambda i: cost(options[i])):
        mine = cost(options[i])
        if not any(
            _place(options[j]) == _place(options[i])
            and all(theirs <= own for theirs, own in zip(cost(options[j]), mine, strict=True))
            for j in found
        ):
            found.append(i)
    return found


def _place(option: Option) -> tuple[str, str, int]:
    """What options must share to take each other's place."""
    return option.takes, option.gives, option.span


def _most_bytes(chain: Chain, options: Sequence[Sequence[int]]) -> int:
    """What no useful choice exceeds: of each stage the most of each kind."""
    return sum(
        max(
            o.resting_bytes + max(o.kept_bytes, o.work_bytes) + o.gradient_bytes
            for o in (stage.options[i] for i in kept)
        )
        for stage, kept in zip(chain.stages, options, strict=True)
        if kept
    )
