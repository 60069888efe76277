"""The default planner: drops chosen greedily, then improved; the best of several such plans.

Greedy: while the peak is above the budget, what removes the most excess for the time it adds is
dropped (search.py), with the variations of `_GREEDY`. Improved: drops are kept, ended early or
exchanged for others as long as that saves time (improve.py), in the cheapest of the greedy plans.
Nothing is random, and no clock is read: the same graph and budget give the same plan, and work is
limited by counting it.

Where none fits, the plan of the least peak is taken: what is reached by planning for the floor, the
most memory at any operator once every gap were dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from memopt.errors import BudgetTooSmallError
from memopt.graph import OpGraph
from memopt.planners.improve import improve, take_back
from memopt.planners.search import Ends, Greed, Search
from memopt.schedule import Schedule
from memopt.units import format_bytes

_GREEDY = (
    Greed(whole=True),
    Greed(),
    Greed(at_peak=True),
    Greed(exponent=0.5, whole=True),
    Greed(exponent=0.5, at_peak=True),
    Greed(exponent=1.5),
    Greed(exponent=2.0, whole=True),
)
_NUM_BESIDE_KNOWN = 3
#: Changes that improving tries, times the number of operators, and in all; at most.
_EFFORT, _MOST_EFFORT = 3_000_000, 8_000


def plan_offline(graph: OpGraph, budget_bytes: int) -> Schedule:
    """The cheapest schedule found whose peak is within the budget.

    Raises:
        BudgetTooSmallError: none was found; names the least peak that was.
    """
    search = Search(graph)
    search.load(best_ends(search, budget_bytes, effort_of(graph)))
    return search.state.schedule()


def effort_of(graph: OpGraph) -> int:
    """Changes to try for one plan: the larger the graph, the longer each takes."""
    return min(_MOST_EFFORT, _EFFORT // max(len(graph.operators), 1))


def best_ends(search: Search, budget_bytes: int, effort: int, known: Iterable[Ends] = ()) -> Ends:
    """Where the drops of the cheapest schedule found end.

    Args:
        effort: changes to try.
        known: of other schedules, to add drops to.

    Raises:
        BudgetTooSmallError: none was found.
    """
    plans: dict[Ends, float] = {}

    def note() -> None:
        plans[tuple(search.ends)] = search.recompute_us

    search.return_to(0)
    if search.peak_bytes() <= budget_bytes:
        return tuple(search.ends)
    for ends in known:
        search.load(ends)
        if search.fit(budget_bytes):
            take_back(search, budget_bytes)
            note()
    for greed in _GREEDY[: _NUM_BESIDE_KNOWN if plans else None]:
        search.return_to(0)
        if search.fit(budget_bytes, greed):
            take_back(search, budget_bytes)
            note()
    if not plans:
        _go_to_least_peak(search, budget_bytes)
        take_back(search, budget_bytes)
        note()
    for ends in sorted(plans, key=lambda ends: plans[ends]):
        search.load(ends)
        effort -= improve(search, budget_bytes, effort // 2)
        note()
    return min(plans, key=lambda ends: plans[ends])


def _go_to_least_peak(search: Search, budget_bytes: int) -> None:
    """The schedule of the least peak that planning for the floor finds.

    Raises:
        BudgetTooSmallError: that peak is above the budget.
    """
    floor, found = search.floor_bytes(), list[tuple[int, Ends]]()
    for greed in _GREEDY:
        search.return_to(0)
        search.fit(floor, greed)
        found.append((search.peak_bytes(), tuple(search.ends)))
    least, ends = min(found, key=lambda item: item[0])
    if least > budget_bytes:
        raise BudgetTooSmallError(
            f"budget {format_bytes(budget_bytes)}: the least found for this iteration is "
            f"{format_bytes(least, round_up=True)}",
            least,
        )
    search.load(ends)
