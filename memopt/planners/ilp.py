"""The optimum of small graphs, by integer programming (as Checkmate, Jain et al. 2020).

The choices are those of a schedule: for each gap, whether its value is dropped and where that ends.

    x[g, m]  gap g is dropped and ends before operator m; at most one m each
    n[v, m]  value v is not there before m: a sum of x
    r[k, m]  operator k is run again before m:  r[maker(v), m] >= x[g of v, m],
             r[maker(v), m] >= r[k, m] + n[v, m] - 1  for each v that k reads
    h[v, j, m]  v, made again before m, is held there up to operator j that reads it:
             >= x[g of v, m],  >= r[i, m] + n[v, m] - 1  for each reader i >= j

    minimise  sum of cost[k] r[k, m]
    such that memory <= budget while each operator runs, and while each r[k, m] does

Only x is integer: the least r and h follow from it. Solved by HiGHS, through scipy.
"""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.graph import OpGraph
from memopt.schedule import Gap, Lives, Schedule
from memopt.simulate import ScheduleState, simulate
from memopt.units import format_bytes

#: Values that may be dropped, at most; with as many operators, solving takes minutes.
MOST_VALUES = 48
_MOST_SECONDS = 120.0
_OPTIMAL, _INFEASIBLE = 0, 2


def plan_ilp(graph: OpGraph, budget_bytes: int) -> Schedule:
    """The cheapest of all schedules whose peak is within the budget.

    Raises:
        BudgetTooSmallError: there is none; it names the least peak of all schedules.
        MemoptError: scipy is not installed, the graph is too large, or it takes too long.
    """
    num_values = sum(bool(gaps) for gaps in Lives(graph).gaps)
    if ScheduleState(graph).memory_bytes().max(initial=0) <= budget_bytes:
        return Schedule()
    if num_values > MOST_VALUES:
        raise MemoptError(
            f"planner ilp: {num_values} values may be dropped, it solves graphs of at most "
            f"{MOST_VALUES}: use planner offline"
        )
    model = Model(graph)
    solution = model.solve(budget_bytes, _MOST_SECONDS)
    if solution is not None:
        return solution
    least = model.least_bytes(_MOST_SECONDS)
    raise BudgetTooSmallError(
        f"budget {format_bytes(budget_bytes)}: the least of all schedules for this iteration is "
        f"{format_bytes(least, round_up=True)}",
        least,
    )


@dataclass
class Rows:
    """Constraints `sum of coefficient * variable <= bound`, as triplets."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def add(self, terms: dict[int, float], bound: float) -> None:
        for column, coefficient in terms.items():
            self.rows.append(len(self.bounds))
            self.columns.append(column)
            self.coefficients.append(coefficient)
        self.bounds.append(bound)


class Model:
    """Variables and constraints of a graph, for any budget. Bytes count in units of the plain peak.

    Attributes:
        values: that may be dropped and have a gap.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.lives = Lives(graph)
        self.values = [number for number, gaps in enumerate(self.lives.gaps) if gaps]
        self._state = ScheduleState(graph)
        self._unit = float(max(self._state.memory_bytes().max(initial=0), 1))
        self._sizes = [size / self._unit for size in self.lives.size_bytes]
        self._rows = Rows()
        self._upper: list[float] = []
        self._cost_us: dict[int, float] = {}
        self._peak = self._new(math.inf)
        self._gaps: list[tuple[Gap, int]] = []
        self._covering: dict[int, list[tuple[Gap, int]]] = defaultdict(list)
        self._ending: dict[int, list[tuple[Gap, int]]] = defaultdict(list)
        self._choose()
        self._fit_operators()
        for moment in sorted(self._ending):
            self._recompute(moment)

    def _new(self, upper: float = 1.0) -> int:
        self._upper.append(upper)
        return len(self._upper) - 1

    def _choose(self) -> None:
        """For each gap, at which operator its drop ends, if it is dropped."""
        lives = self.lives
        for value in self.values:
            for gap in lives.gaps[value]:
                ends = range(gap.start + 2, gap.end + 1)
                choices = [
                    (Gap(value, gap.start, end), self._new())
                    for end in ends
                    if lives.recomputes_at(end)
                ]
                self._gaps += choices
                self._rows.add({number: 1.0 for _, number in choices}, 1.0)
        for gap, number in self._gaps:
            self._ending[gap.end].append((gap, number))
            for moment in range(gap.start + 1, gap.end):
                self._covering[moment].append((gap, number))

    def _fit_operators(self) -> None:
        """Memory while the program's own operators run."""
        for moment, alive in enumerate(self._state.memory_bytes()):
            terms = {number: -self._sizes[g.value] for g, number in self._covering[moment]}
            self._rows.add({**terms, self._peak: -1.0}, -float(alive) / self._unit)

    def _in_reach(self, moment: int) -> list[int]:
        """Operators that can be needed before a moment, in order."""
        lives = self.lives
        open_values = [gap.value for gap, _ in self._ending[moment]]
        seen, found = set(open_values), set()
        while open_values:
            maker = lives.maker[open_values.pop()]
            found.add(maker)
            for read in lives.inputs[maker]:
                if read not in seen:
                    seen.add(read)
                    open_values.append(read)
        return sorted(found)

    def _recompute(self, moment: int) -> None:
        """What is run again before an operator, and the memory that this takes."""
        lives = self.lives
        absent: dict[int, dict[int, float]] = defaultdict(dict)
        wanted: dict[int, dict[int, float]] = defaultdict(dict)
        for gap, number in (*self._covering[moment], *self._ending[moment]):
            absent[gap.value][number] = 1.0
        for gap, number in self._ending[moment]:
            wanted[gap.value][number] = 1.0
        run = {number: self._new() for number in self._in_reach(moment)}
        self._cost_us.update({run[number]: lives.cost_us[number] for number in run})
        for value, choices in wanted.items():
            self._rows.add({**choices, run[lives.maker[value]]: -1.0}, 0.0)
        # Not there however one chooses: 1.
        gone: dict[int, float] = {}
        readers: dict[int, list[int]] = {value: [] for value in wanted}
        for number in run:
            for read in self.graph.operators[number].reads:
                gone[read] = 0.0 if lives.there(read, moment, ()) else 1.0
                if lives.may_drop(read):
                    readers.setdefault(read, []).append(number)
                    self._rows.add(
                        {run[number]: 1.0, **absent[read], run[lives.maker[read]]: -1.0},
                        1.0 - gone[read],
                    )
                elif gone[read]:
                    self._rows.add({run[number]: 1.0}, 0.0)

        held = {value: self._hold(value, run, absent, wanted, readers, gone) for value in readers}
        before = self._new(math.inf)
        bytes_before = self._state.bytes_before(moment) / self._unit
        alive = {
            number: -self._sizes[gap.value]
            for gap, number in (*self._covering[moment], *self._ending[moment])
        }
        self._rows.add({**alive, before: -1.0}, -bytes_before)
        for number in run:
            terms = {before: 1.0, self._peak: -1.0}
            for value, steps in held.items():
                if lives.maker[value] < number:
                    step = next((step for upto, step in steps if upto >= number), None)
                    if step is not None:
                        terms[step] = self._sizes[value]
            made, bases = lives.working_bytes(number)
            for read, size in bases:
                if read in readers:
                    # Written over a version made again for it; otherwise it is a second copy.
                    made -= size
                    copied = self._new()
                    there = dict.fromkeys(absent[read], -1.0)
                    self._rows.add({run[number]: 1.0, copied: -1.0, **there}, gone[read])
                    terms[copied] = size / self._unit
            terms[run[number]] = made / self._unit
            self._rows.add(terms, 0.0)

    def _hold(
        self,
        value: int,
        run: dict[int, int],
        absent: dict[int, dict[int, float]],
        wanted: dict[int, dict[int, float]],
        readers: dict[int, list[int]],
        gone: dict[int, float],
    ) -> list[tuple[int, int]]:
        """Up to which operators a value is held once it is made again, and the variable of that."""
        steps: list[tuple[int, int]] = []
        if value in wanted:
            steps.append((len(self.graph.operators), self._new()))
            self._rows.add({**wanted[value], steps[0][1]: -1.0}, 0.0)
        for reader in reversed(readers[value]):
            step = self._new()
            terms = {run[reader]: 1.0, **absent[value], step: -1.0}
            self._rows.add(terms, 1.0 - gone[value])
            if steps:
                self._rows.add({steps[-1][1]: 1.0, step: -1.0}, 0.0)
            steps.append((reader, step))
        return steps[::-1]

    def solve(self, budget_bytes: int, most_seconds: float) -> Schedule | None:
        """The cheapest schedule within a budget; None if there is none."""
        return self._optimum(self._cost_us, budget_bytes / self._unit, most_seconds)

    def least_bytes(self, most_seconds: float) -> int:
        """The least peak of all schedules."""
        found = self._optimum({self._peak: 1.0}, math.inf, most_seconds)
        assert found is not None, "dropping nothing is a schedule"
        return simulate(self.graph, found).peak_bytes

    def _optimum(
        self, cost: dict[int, float], budget: float, most_seconds: float
    ) -> Schedule | None:
        optimize, sparse = _scipy()
        num, rows = len(self._upper), self._rows
        upper, objective, is_integer = np.array(self._upper), np.zeros(num), np.zeros(num)
        upper[self._peak] = budget
        objective[list(cost)] = list(cost.values())
        is_integer[[number for _, number in self._gaps]] = 1
        matrix = sparse.csr_array(
            (rows.coefficients, (rows.rows, rows.columns)), shape=(len(rows.bounds), num)
        )
        result = optimize.milp(
            objective,
            integrality=is_integer,
            bounds=optimize.Bounds(np.zeros(num), upper),
            constraints=optimize.LinearConstraint(matrix, ub=rows.bounds),
            options={"time_limit": most_seconds, "mip_rel_gap": 1e-6},
        )
        if result.status == _INFEASIBLE:
            return None
        if result.status != _OPTIMAL:
            raise MemoptError(
                f"planner ilp: no proven optimum after {most_seconds:g} s: use planner offline, "
                "or a smaller graph"
            )
        return Schedule(frozenset(gap for gap, number in self._gaps if result.x[number] > 0.5))


def _scipy() -> tuple[Any, Any]:
    try:
        return importlib.import_module("scipy.optimize"), importlib.import_module("scipy.sparse")
    except ImportError:
        raise MemoptError("planner ilp needs scipy: pip install 'facetrain[ilp]'") from None
