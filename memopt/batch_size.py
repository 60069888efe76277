"""A step at any batch size, from traces at three; and the largest batch that a budget holds.

Bytes of each storage are affine in the batch (a b + c), and times are taken to be proportional to
it, so that two traces give every other size; a third checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.graph import OpGraph
from memopt.planners import find_planner

_TOLERANCE = 0.02


class BatchScaling:
    """The controlled step of a model at any batch.

    Args:
        trace_at: gives the step at a batch, timed. Called for one, two and three times `base`.
        base: a small batch; 2 at least where BatchNorm is in the model.
        checked: trace a third batch to see that bytes are affine; otherwise that is taken for so.

    Raises:
        MemoptError: the step's bytes are not affine in the batch.
    """

    def __init__(
        self, trace_at: Callable[[int], OpGraph], base: int, *, checked: bool = True
    ) -> None:
        self._base = base
        self._first, second = trace_at(base), trace_at(2 * base)
        if len(self._first.storages) == len(second.storages):
            self._growth_bytes = [
                larger.size_bytes - smaller.size_bytes
                for smaller, larger in zip(self._first.storages, second.storages, strict=True)
            ]
            if not checked or self.graph(3 * base).storages == trace_at(3 * base).storages:
                return
        raise MemoptError(
            f"the step at batches {base}, {2 * base} and {3 * base} does not grow evenly: "
            "its largest batch cannot be told"
        )

    def graph(self, batch: int) -> OpGraph:
        """The step at a batch."""
        scale = batch / self._base
        return replace(
            self._first,
            storages=tuple(
                replace(storage, size_bytes=storage.size_bytes + round(growth * (scale - 1)))
                for storage, growth in zip(self._first.storages, self._growth_bytes, strict=True)
            ),
            operators=tuple(
                replace(operator, cost_us=operator.cost_us * scale)
                for operator in self._first.operators
            ),
        )

    def largest(self, fits: Callable[[OpGraph, int], bool], *, at_least: int = 2) -> int:
        """The largest batch that fits, within 2 %; 0 if `at_least` does not.

        Args:
            fits: whether a step fits, given its graph and batch.
        """
        if not fits(self.graph(at_least), at_least):
            return 0
        found, too_large = at_least, 2 * at_least
        while fits(self.graph(too_large), too_large):
            found, too_large = too_large, 2 * too_large
        while too_large - found > max(1, _TOLERANCE * found):
            middle = (found + too_large) // 2
            if fits(self.graph(middle), middle):
                found = middle
            else:
                too_large = middle
        return found


def fits_planned(graph: OpGraph, budget_bytes: int, planner: str = "offline") -> bool:
    """Whether a planner finds a plan for a step."""
    try:
        find_planner(planner)(graph, budget_bytes)
    except BudgetTooSmallError:
        return False
    return True
