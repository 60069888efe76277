"""Planners: what to drop so that an iteration fits a budget. One file each.

Adding one is a file, an entry in `PLANNERS`, a test and a line in memopt/README.md.
"""

from __future__ import annotations

from typing import Protocol

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.planners.curve import Point, plan_curve
from memopt.planners.ilp import plan_ilp
from memopt.planners.offline import plan_offline
from memopt.planners.sublinear import plan_sublinear
from memopt.schedule import Schedule

__all__ = ["PLANNERS", "Planner", "Point", "find_planner", "plan_curve", "plan_offline"]


class Planner(Protocol):
    """Plans one iteration."""

    def __call__(self, graph: OpGraph, budget_bytes: int) -> Schedule:
        """A schedule whose peak is within the budget; an empty one where nothing need be dropped.

        Raises:
            BudgetTooSmallError: none was found; names the least budget that was.
        """


PLANNERS: dict[str, Planner] = {
    "offline": plan_offline,
    "sublinear": plan_sublinear,
    "ilp": plan_ilp,
}


def find_planner(name: str) -> Planner:
    """The planner of that name.

    Raises:
        MemoptError: unknown name.
    """
    if name not in PLANNERS:
        raise MemoptError(f"planner {name!r} is unknown: use one of {', '.join(sorted(PLANNERS))}")
    return PLANNERS[name]
