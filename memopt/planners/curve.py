"""Budget against recompute time: plans at several budgets that share their work.

    for point in plan_curve(graph, [budget_bytes, ...]):
        point.budget_bytes, point.peak_bytes, point.recompute_us, point.schedule

Budgets are planned from the largest down, each also by dropping more than the one before. Then each
takes the cheapest of all plans that fit it. So along the curve less memory never takes less time,
and a smaller budget never needs more memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memopt.errors import BudgetTooSmallError
from memopt.graph import OpGraph
from memopt.planners.offline import best_ends, effort_of
from memopt.planners.search import Ends, Search
from memopt.schedule import Schedule

#: Budgets whose plans take as long as one of `plan_offline`.
_BUDGETS_AT_ONCE = 6


@dataclass(frozen=True)
class Point:
    """The plan for one budget.

    Attributes:
        budget_bytes: what was asked for.
        peak_bytes: what the plan takes; None where none was found.
        recompute_us: time that it adds; None where none was found.
        schedule: it.
    """

    budget_bytes: int
    peak_bytes: int | None
    recompute_us: float | None
    schedule: Schedule | None


def plan_curve(graph: OpGraph, budgets_bytes: Iterable[int]) -> list[Point]:
    """A plan for each budget, from the largest down; budgets below the floor have none."""
    search = Search(graph)
    budgets = sorted(set(budgets_bytes), reverse=True)
    effort = effort_of(graph) // _BUDGETS_AT_ONCE
    found: list[tuple[float, int, Ends]] = []
    for budget in budgets:
        try:
            ends = best_ends(search, budget, effort, known=[last[2] for last in found[-1:]])
        except BudgetTooSmallError:
            break
        search.load(ends)
        found.append((search.recompute_us, search.peak_bytes(), ends))
    points = []
    for budget in budgets:
        fitting = [plan for plan in found if plan[1] <= budget]
        if not fitting:
            points.append(Point(budget, None, None, None))
            continue
        recompute_us, peak_bytes, ends = min(fitting, key=lambda plan: plan[:2])
        search.load(ends)
        points.append(Point(budget, peak_bytes, recompute_us, search.state.schedule()))
    return points
