"""Holds a training loop inside a budget of bytes: `memopt.budget(model, "4GiB")`.

    memopt.budget(model, "4GiB")
    for images, labels in loader:  # as before
        loss_of(model(images), labels).backward()
        optimizer.step()

Each forward pass with gradients runs under a plan for inputs of such shapes. A shape, mode or type
that was not met before is traced under fake tensors and planned first, so that no step runs over
the budget; plans are kept. A pass that goes another way than traced is finished inside the budget
as far as what is planned allows, and traced anew; a model that does so again and again is run under
an online policy. Gradients, buffers and random state are what they are without, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from memopt.capture import CostTable
from memopt.capture.tracking import is_made_of_tensors
from memopt.errors import MemoptError
from memopt.execute import PlannedPass, Program
from memopt.execute.online import Online
from memopt.execute.online_pass import OnlinePass
from memopt.plan import Plan, adapted, gradient_exists, make_plan, trace, with_costs
from memopt.planners import find_planner
from memopt.units import format_bytes, parse_bytes

_FALLBACK_POLICY = "dtr_eq"
_MOST_STRAYS = 3


class Budget:
    """A model whose forward passes hold a budget; made by `budget`.

    Attributes:
        budget_bytes: peak above the resting state (weights, buffers, optimizer state, inputs) over
            the model's forward and backward, gradients of weights included.
        loss_bytes: of that, what the loss takes between the two.
        plans: made so far, by kind of pass.
        recompute_seconds: spent on recomputation so far. On a GPU that is the time to launch it.
        online: makes the passes that run under an online policy.
        num_strays: passes that went another way than planned.
    """

    def __init__(
        self,
        model: nn.Module,
        budget_bytes: int,
        *,
        planner: str,
        policy: str | None,
        costs: CostTable,
        loss_bytes: int = 0,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.loss_bytes = loss_bytes
        self.plans: dict[Any, Plan] = {}
        self.recompute_seconds = 0.0
        self.num_strays = 0
        self._policy = policy or _FALLBACK_POLICY
        self.online = Online(self._policy, budget_bytes)
        self._model = model
        self._planner = planner
        self._is_planned = policy is None
        self._costs = costs
        self._programs: dict[Any, Program | None] = {}
        self._strayed: dict[Any, list[str]] = {}  # patterns that passes strayed from
        self._open: list[tuple[Any, ExitStack, PlannedPass | OnlinePass | None]] = []
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True, prepend=True),
            model.register_forward_hook(_Hook(self._leave), with_kwargs=True, always_call=True),
        ]

    def plan(self, *args: Any, accumulates: bool | None = None, **kwargs: Any) -> Plan:
        """The plan for a forward pass with such arguments, made now if there is none.

        Args:
            accumulates: whether gradients of earlier passes exist then; None: as they do now.

        Raises:
            MemoptError: the budget is too small (the least is named), or the pass cannot be traced.
        """
        kind = self._kind(args, kwargs, accumulates)
        if kind not in self.plans:
            self._add(kind, self._make(args, kwargs, accumulates))
        return self.plans[kind]

    def _make(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], accumulates: bool | None
    ) -> Plan:
        held_bytes = self._held_bytes(accumulates)
        try:
            recording = trace(self._model, args, kwargs, accumulates=accumulates)
        except MemoptError as error:
            raise MemoptError(
                f"{error}; or run it under an online policy, which traces nothing: "
                f"memopt.budget(model, size, policy={_FALLBACK_POLICY!r})"
            ) from error
        for plan in self.plans.values():
            # Another number of rows changes sizes and times, not what is worth dropping.
            if same := adapted(plan, recording, self.budget_bytes, held_bytes, self.loss_bytes):
                return same
        return make_plan(
            with_costs(recording, self._costs),
            self.budget_bytes,
            held_bytes=held_bytes,
            loss_bytes=self.loss_bytes,
            planner=self._planner,
            costs=self._costs,
        )

    def _held_bytes(self, accumulates: bool | None) -> int:
        """Of gradients that exist before the pass."""
        return sum(
            (parameter if parameter.grad is None else parameter.grad).nbytes
            for parameter in self._model.parameters()
            if gradient_exists(parameter, accumulates)
        )

    def _add(self, kind: Any, plan: Plan) -> None:
        strayed = self._strayed.get(kind, [])
        # A trace that looks like the one just strayed from cannot foresee the branch.
        is_settled = len(strayed) < _MOST_STRAYS and strayed[-1:] != [plan.step.recording.pattern]
        self.plans[kind] = plan
        self._programs[kind] = Program(plan.step, plan.schedule) if is_settled else None

    def remove(self) -> None:
        """The model runs as before."""
        for hook in self._hooks:
            hook.remove()

    def describe(self) -> str:
        """One line for a log."""
        made = "; ".join(plan.describe() for plan in self.plans.values()) or "nothing planned yet"
        changing = sum(program is None for program in self._programs.values())
        if changing or not self._is_planned:
            made += f"; {changing or 'all'} kinds of pass under policy {self._policy}"
        return f"budget {format_bytes(self.budget_bytes)}: {made}"

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack = ExitStack()
        kind, forward_pass = None, None
        try:
            if torch.is_grad_enabled():
                kind = self._kind(args, kwargs, None)
                forward_pass = self._new_pass(kind, args, kwargs)
            if forward_pass is not None:
                stack.enter_context(forward_pass.hooks())
        finally:  # `_leave` is called after an exception here too
            self._open.append((kind, stack, forward_pass))

    def _refuse_sharded(self) -> None:
        for name, parameter in self._model.named_parameters():
            if is_made_of_tensors(type(parameter)):
                raise MemoptError(
                    f"parameter {name} is sharded ({type(parameter).__name__}): its memory comes "
                    "and goes within a step, which a memory plan does not know yet; hold a budget "
                    "with DDP, or shard without one"
                )

    def _new_pass(
        self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedPass | OnlinePass | None:
        """None where nothing needs to be dropped."""
        if kind not in self._programs or not self._is_planned:
            self._refuse_sharded()
        if not self._is_planned:
            return self.online.new_pass(self._held_bytes(None))
        if kind not in self._programs:
            self._add(kind, self._make(args, kwargs, None))
        program = self._programs[kind]
        if program is None:
            return self.online.new_pass(self._held_bytes(None))
        if not program.drops_anything:
            return None
        return PlannedPass(program, self._resting(program, args, kwargs), self._recomputed)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        if not self._open:
            return
        kind, stack, forward_pass = self._open.pop()
        stack.close()
        if forward_pass is None:
            return
        forward_pass.close(outputs)
        if isinstance(forward_pass, PlannedPass) and forward_pass.diverged_at is not None:
            self.num_strays += 1
            pattern = self.plans[kind].step.recording.pattern
            self._strayed.setdefault(kind, []).append(pattern)
            self._programs.pop(kind, None)

    def _recomputed(self, seconds: float) -> None:
        self.recompute_seconds += seconds

    def _kind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], accumulates: bool | None
    ) -> tuple[Any, ...]:
        """All that decides what a forward pass does, as far as it can be told before."""
        leaves, structure = tree_flatten((args, kwargs))
        parameters = self._model.parameters()
        return (
            structure,
            tuple(_describe(leaf) for leaf in leaves),
            tuple([module.training for module in self._model.modules()]),
            tuple([(p.requires_grad, gradient_exists(p, accumulates)) for p in parameters]),
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
    policy: str | None = None,
    costs: CostTable | None = None,
    loss_bytes: int = 0,
) -> Budget:
    """Makes the model's training hold a budget, from its next forward pass on.

    Args:
        model: on its device.
        size: such as "4GiB", or bytes.
        planner: see `memopt.planners.PLANNERS`.
        policy: run every pass under an online policy instead, see `memopt.policies.POLICIES`:
            for models whose operators change from step to step. It may go over the budget.
        costs: times of operators; None: measured for this model.
        loss_bytes: what the loss takes between the forward and the backward pass, where the budget
            is to hold that too; by plan only.

    Raises:
        MemoptError: a size that is none, an unknown planner or policy.
    """
    find_planner(planner)
    size_bytes = parse_bytes(size) if isinstance(size, str) else size
    if size_bytes < 1:
        raise MemoptError(f"memory budget {size_bytes} must be at least one byte")
    return Budget(
        model,
        size_bytes,
        planner=planner,
        policy=policy,
        costs=CostTable() if costs is None else costs,
        loss_bytes=loss_bytes,
    )


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return leaf if leaf.__hash__ is not None else repr(leaf)
