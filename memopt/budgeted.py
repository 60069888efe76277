"""Holds a training loop inside a budget of bytes: `memopt.budget(model, "4GiB")`.

    memopt.budget(model, "4GiB")
    for images, labels in loader:  # as before
        loss_of(model(images), labels).backward()
        optimizer.step()

Each forward pass with gradients runs under a plan for inputs of such shapes. A shape, mode or type
that was not met before is traced under fake tensors and planned first, so that no step runs over
the budget; plans are kept. Gradients, buffers and random state are what they are without, to the
bit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from memopt.capture import CostTable, Recording, fake_copy, record_fake
from memopt.capture.fake import fake_like
from memopt.controlled import ControlledStep, controlled
from memopt.errors import MemoptError
from memopt.execute import PlannedPass, Program, find_splits
from memopt.planners import find_planner
from memopt.schedule import Schedule
from memopt.simulate import simulate
from memopt.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class Plan:
    """What is dropped in passes of one kind.

    Attributes:
        step: the traced iteration.
        schedule: what is dropped of it.
        plain_peak_bytes, peak_bytes: predicted, without and with the schedule.
        recompute_us: time of all recomputations.
        plain_us: time of the iteration without them.
        trace_seconds, plan_seconds: what making it took.
    """

    step: ControlledStep
    schedule: Schedule
    plain_peak_bytes: int
    peak_bytes: int
    recompute_us: float
    plain_us: float
    trace_seconds: float
    plan_seconds: float

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
    costs: CostTable | None = None,
) -> Recording:
    """A forward and backward pass of the model under fake tensors; nothing is run.

    The mode, autocast region and gradients at hand are those of the pass. Random state stays.

    Args:
        model: on its device.
        args, kwargs: of its forward; tensors in them only lend their shapes.
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
            if real.grad is not None:
                fake.grad = fake_like(real.grad)

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

    with _same_random_state(), torch.enable_grad(), _no_autocast_cache():
        return record_fake(build, costs=costs, calls=True)


def make_plan(
    recording: Recording,
    budget_bytes: int,
    *,
    planner: str = "offline",
    costs: CostTable | None = None,
) -> Plan:
    """Plans a traced iteration.

    Raises:
        MemoptError: the budget is too small (the least is named), unknown planner.
    """
    start = time.perf_counter()
    step = controlled(recording, find_splits(recording, costs))
    schedule = find_planner(planner)(step.graph, budget_bytes)
    result = simulate(step.graph, schedule)
    return Plan(
        step=step,
        schedule=schedule,
        plain_peak_bytes=simulate(step.graph, Schedule()).peak_bytes,
        peak_bytes=result.peak_bytes,
        recompute_us=result.recompute_us,
        plain_us=step.graph.total_cost_us(),
        trace_seconds=0.0,
        plan_seconds=time.perf_counter() - start,
    )


class Budget:
    """A model whose forward passes hold a budget; made by `budget`.

    Attributes:
        budget_bytes: peak above the resting state (weights, buffers, optimizer state, inputs) over
            the model's forward and backward, gradients of weights included.
        plans: made so far, by kind of pass.
    """

    def __init__(
        self, model: nn.Module, budget_bytes: int, *, planner: str, costs: CostTable
    ) -> None:
        self.budget_bytes = budget_bytes
        self.plans: dict[Any, Plan] = {}
        self._model = model
        self._planner = planner
        self._costs = costs
        self._programs: dict[Any, Program] = {}
        self._open: list[ExitStack] = []
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True, prepend=True),
            model.register_forward_hook(_Hook(self._leave), with_kwargs=True, always_call=True),
        ]

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for a forward pass with such arguments, made now if there is none.

        Raises:
            MemoptError: the budget is too small (the least is named), or the pass cannot be traced.
        """
        kind = self._kind(args, kwargs)
        if kind not in self.plans:
            start = time.perf_counter()
            recording = trace(self._model, args, kwargs, costs=self._costs)
            traced_seconds = time.perf_counter() - start
            made = make_plan(recording, self.budget_bytes, planner=self._planner, costs=self._costs)
            self.plans[kind] = replace(made, trace_seconds=traced_seconds)
            self._programs[kind] = Program(made.step, made.schedule)
        return self.plans[kind]

    def remove(self) -> None:
        """The model runs as before."""
        for hook in self._hooks:
            hook.remove()

    def describe(self) -> str:
        """One line for a log."""
        made = "; ".join(plan.describe() for plan in self.plans.values()) or "nothing planned yet"
        return f"budget {format_bytes(self.budget_bytes)}: {made}"

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack = ExitStack()
        if torch.is_grad_enabled():
            self.plan(*args, **kwargs)
            program = self._programs[self._kind(args, kwargs)]
            if program.drops_anything:
                forward_pass = PlannedPass(program, self._resting(program, args, kwargs))
                stack.callback(forward_pass.close)
                stack.enter_context(forward_pass.hooks())
        self._open.append(stack)

    def _leave(self, *_: Any) -> None:
        if self._open:
            self._open.pop().close()

    def _kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All that decides what a forward pass does, as far as it can be told before."""
        leaves, structure = tree_flatten((args, kwargs))
        parameters = list(self._model.parameters())
        return (
            structure,
            tuple(_describe(leaf) for leaf in leaves),
            tuple([module.training for module in self._model.modules()]),
            tuple([parameter.requires_grad for parameter in parameters]),
            any(parameter.grad is not None for parameter in parameters),
            tuple(
                torch.get_autocast_dtype(kind)
                for kind in ("cpu", "cuda")
                if torch.is_autocast_enabled(kind)
            ),
        )

    def _resting(
        self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, Tensor]:
        """What the program's resting values are today."""
        inputs = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        found = {}
        for value, name in program.resting.items():
            position, _, rest = name.partition(".")
            if rest:
                owner, _, attribute = rest.rpartition(".")
                found[value] = getattr(self._model.get_submodule(owner), attribute)
            elif int(position) <= len(inputs):
                found[value] = inputs[int(position) - 1].detach()
        return found


class _Hook:
    """A hook that a copied or saved model does not take along."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        if self._call is not None:
            self._call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None,)


def budget(
    model: nn.Module,
    size: str | int,
    *,
    planner: str = "offline",
    costs: CostTable | None = None,
) -> Budget:
    """Makes the model's training hold a budget, from its next forward pass on.

    Args:
        model: on its device.
        size: such as "4GiB", or bytes.
        planner: see `memopt.planners.PLANNERS`.
        costs: times of operators; None: kept in the user's cache folder.

    Raises:
        MemoptError: a size that is none, an unknown planner.
    """
    find_planner(planner)
    size_bytes = parse_bytes(size) if isinstance(size, str) else size
    return Budget(model, size_bytes, planner=planner, costs=CostTable() if costs is None else costs)


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return leaf if leaf.__hash__ is not None else repr(leaf)


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
