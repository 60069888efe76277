"""From a model and the shapes of its inputs to a plan: what of its step is dropped.

recording = trace(model, (images,), costs=CostTable())  # nothing is run
plan = make_plan(recording, parse_bytes("4GiB"))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from memopt.capture import CostTable, Recording, fake_copy, record_fake
from memopt.capture.fake import fake_like
from memopt.controlled import ControlledStep, controlled
from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.execute import PROBE_BYTES, find_splits
from memopt.graph import OpGraph, Role, with_loss_bytes
from memopt.planners import find_planner
from memopt.planners.curve import plan_curve
from memopt.schedule import Schedule
from memopt.simulate import simulate
from memopt.units import format_bytes


@dataclass(frozen=True)
class Plan:
    """What is dropped in passes of one kind.

    Attributes:
        step: the traced iteration.
        schedule: what is dropped of it.
        plain_peak_bytes, peak_bytes: predicted, without and with the schedule.
        recompute_us: time of all recomputations.
        plain_us: time of the iteration without them.
    """

    step: ControlledStep
    schedule: Schedule
    plain_peak_bytes: int
    peak_bytes: int
    recompute_us: float
    plain_us: float

    @property
    def overhead(self) -> float:
        """Recompute time as a share of the plain iteration's."""
        return self.recompute_us / self.plain_us if self.plain_us else 0.0

    def describe(self) -> str:
        """One line for a log."""
        return (
            f"plain {format_bytes(self.plain_peak_bytes)}, planned {format_bytes(self.peak_bytes)}"
            f", {len(self.schedule.drops)} tensors dropped (+{self.overhead:.1%} time)"
        )


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    accumulates: bool | None = None,
    costs: CostTable | None = None,
) -> Recording:
    """A forward and backward pass of the model under fake tensors; nothing is run.

    The mode, autocast region and gradients at hand are those of the pass. Random state stays.

    Args:
        model: on its device.
        args, kwargs: of its forward; tensors in them only lend their shapes.
        accumulates: whether every trained parameter has a gradient already; None: those that do.
        costs: times the operators.

    Raises:
        MemoptError: see `record_fake`; and no output needs a gradient.
    """
    leaves, structure = tree_flatten((args, kwargs or {}))

    def build() -> tuple[Callable[[], object], list[nn.Module | Tensor]]:
        fake_model = fake_copy(model)
        fakes = [fake_like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        fake_args, fake_kwargs = tree_unflatten(fakes, structure)
        for fake, real in zip(fake_model.parameters(), model.parameters(), strict=True):
            if real.grad is not None if accumulates is None else accumulates and real.requires_grad:
                fake.grad = fake_like(real if real.grad is None else real.grad).requires_grad_(
                    False
                )

        def step() -> object:
            outputs = fake_model(*fake_args, **fake_kwargs)
            needing = [
                output
                for output in tree_flatten(outputs)[0]
                if isinstance(output, Tensor) and output.requires_grad
            ]
            if not needing:
                raise MemoptError("no output of the model needs a gradient: nothing to plan")
            with _no_autocast():
                torch.autograd.backward(needing, [torch.empty_like(out) for out in needing])
            return outputs

        resting = [fake for fake in fakes if isinstance(fake, Tensor)]
        gradients = [p.grad for p in fake_model.parameters() if p.grad is not None]
        return step, [fake_model, *resting, *gradients]

    # Modes around the step, such as counters of bytes, have no business with fake tensors.
    with _disable_current_modes(), _same_random_state(), torch.enable_grad(), _no_autocast_cache():
        return record_fake(build, costs=costs, calls=True)


def gradient_exists(parameter: Tensor, accumulates: bool | None) -> bool:
    """Whether a parameter has a gradient before a pass; `accumulates` as in `trace`."""
    return (
        parameter.grad is not None
        if accumulates is None
        else (accumulates and parameter.requires_grad)
    )


def make_plan(
    recording: Recording,
    budget_bytes: int,
    *,
    held_bytes: int = 0,
    loss_bytes: int = 0,
    planner: str = "offline",
    costs: CostTable | None = None,
) -> Plan:
    """Plans a traced iteration.

    Args:
        budget_bytes: peak above the resting state, gradients of weights included.
        held_bytes: of that, gradients that exist before the iteration.
        loss_bytes: of that, what the loss takes between forward and backward.

    Raises:
        BudgetTooSmallError: the budget is too small; names the least.
        MemoptError: unknown planner.
    """
    step = _with_loss(controlled(recording, find_splits(recording, costs)), loss_bytes)
    if simulate(step.graph, Schedule()).peak_bytes + held_bytes <= budget_bytes:
        return _plan(step, Schedule(), held_bytes)
    beside_bytes = held_bytes + PROBE_BYTES * len(step.ordinals)
    try:
        schedule = find_planner(planner)(step.graph, budget_bytes - beside_bytes)
    except BudgetTooSmallError as error:
        least_bytes = error.least_bytes + beside_bytes
        raise BudgetTooSmallError(
            f"memory budget {format_bytes(budget_bytes)} is too small: the least found for this "
            f"step is {format_bytes(least_bytes, round_up=True)}",
            least_bytes,
        ) from error
    return _plan(step, schedule, held_bytes)


def make_plans(
    recording: Recording,
    budgets_bytes: Iterable[int],
    *,
    held_bytes: int = 0,
    costs: CostTable | None = None,
) -> list[tuple[int, Plan]]:
    """Each budget that can be held and its plan, from the largest down; they share their work.

    Along them less memory never takes less time. Arguments as of `make_plan`.
    """
    step = controlled(recording, find_splits(recording, costs))
    beside_bytes = held_bytes + PROBE_BYTES * len(step.ordinals)
    points = plan_curve(step.graph, [budget - beside_bytes for budget in budgets_bytes])
    return [
        (point.budget_bytes + beside_bytes, _plan(step, point.schedule, held_bytes))
        for point in points
        if point.schedule is not None
    ]


def adapted(
    plan: Plan,
    recording: Recording,
    budget_bytes: int,
    held_bytes: int = 0,
    loss_bytes: int = 0,
) -> Plan | None:
    """The plan's schedule for an iteration of other sizes, if it has the same operators.

    Returns:
        None if they are others, or the schedule does not fit the budget there.
    """
    step = _with_loss(controlled(recording, find_splits(recording, None)), loss_bytes)
    ours, theirs = step.graph, plan.step.graph
    if (
        ours.values != theirs.values
        or ours.unpacks != theirs.unpacks
        or ours.last_use != theirs.last_use
        or ours.held_until != theirs.held_until
        or len(ours.operators) != len(theirs.operators)
        or any(
            (a.name, a.reads, a.makes, a.replay) != (b.name, b.reads, b.makes, b.replay)
            for a, b in zip(ours.operators, theirs.operators, strict=True)
        )
    ):
        return None
    scale = _bytes_made(ours) / max(_bytes_made(theirs), 1)
    operators = tuple(
        replace(ours_op, cost_us=theirs_op.cost_us * scale)
        for ours_op, theirs_op in zip(ours.operators, theirs.operators, strict=True)
    )
    step = replace(step, graph=replace(ours, operators=operators))
    found = _plan(step, plan.schedule, held_bytes)
    return found if found.peak_bytes <= budget_bytes else None


def with_costs(recording: Recording, costs: CostTable) -> Recording:
    """A traced iteration with times; operators that the table does not know are timed now."""
    assert recording.calls is not None
    operators = tuple(
        replace(operator, cost_us=costs.cost_us(call))
        for operator, call in zip(recording.graph.operators, recording.calls, strict=True)
    )
    return replace(recording, graph=replace(recording.graph, operators=operators))


def _with_loss(step: ControlledStep, loss_bytes: int) -> ControlledStep:
    return replace(step, graph=with_loss_bytes(step.graph, loss_bytes))


def _plan(step: ControlledStep, schedule: Schedule, held_bytes: int) -> Plan:
    result = simulate(step.graph, schedule)
    return Plan(
        step=step,
        schedule=schedule,
        plain_peak_bytes=simulate(step.graph, Schedule()).peak_bytes + held_bytes,
        peak_bytes=result.peak_bytes + held_bytes + PROBE_BYTES * len(schedule.drops),
        recompute_us=result.recompute_us,
        plain_us=step.graph.total_cost_us(),
    )


def _bytes_made(graph: OpGraph) -> int:
    return sum(storage.size_bytes for storage in graph.storages if storage.role is not Role.RESTING)


@contextmanager
def _no_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Fake casts of fake weights have no place in the cache of the region around."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def _same_random_state() -> Iterator[None]:
    python, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
