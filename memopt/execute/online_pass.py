"""One forward pass and its backward passes under an online policy: what does not fit is evicted.

    with online_pass.hooks():
        outputs = model(images)
    online_pass.close(outputs)

In forward a dispatch mode sees every operator: it counts bytes, times the operator and notes how it
was called, so that it can be run again. What autograd saves is held by the pass; when the budget is
short, the policy chooses which of it to let go among

    what can be made again (no randomness, nothing unknown on the way from what stays), and
    what only the pass holds: a tensor that the program still has is never touched.

In backward there is no mode; see memopt/execute/online_nodes.py. State goes with the pass, and the
pass with what autograd holds of it.

Exact: bytes of what the forward pass makes, of gradients between nodes, of recomputed tensors.
Estimates: an operator's results, and what a node of backward takes while it runs, before the first
time that they are seen with such shapes; a storage that is resized counts as it began. Not counted:
what the program makes outside of the model's passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memopt.capture.operators import with_views, written
from memopt.capture.recording import TensorView
from memopt.capture.tracking import Running, is_made_of_tensors
from memopt.execute.guards import check_version
from memopt.execute.online_memory import OnlineMemory
from memopt.execute.online_nodes import NodeBytes, next_node_number, watch
from memopt.execute.online_residency import Residency
from memopt.execute.online_values import PassStorages, Values
from memopt.execute.replay_step import seen_as
from memopt.policies import Policy, State


class Handle:
    """What autograd holds for a saved tensor of the pass."""

    __slots__ = ("owner", "there", "value", "view")

    def __init__(
        self, owner: OnlinePass, there: Residency, value: int, view: TensorView | None
    ) -> None:
        self.owner = owner  # which nodes look for
        self.there = there
        self.value = value
        self.view = view  # None: as it is kept

    def __del__(self) -> None:
        self.there.released(self.value)


class KnownOperator(NamedTuple):
    """What an operator took when it ran with such arguments."""

    made_bytes: int
    cost_us: float


KnownOperators = dict[Any, KnownOperator]


class OnlinePass:
    """Hooks of one forward pass; use `hooks()` around it, and `close` after it.

    Args:
        memory: of this pass and others that are alive.
        policy: chooses what to evict.
        operators: what is known of operators; more is added.
        node_bytes: what is known of nodes of backward; more is added.
    """

    def __init__(
        self,
        memory: OnlineMemory,
        policy: Callable[[State], Policy],
        operators: KnownOperators,
        node_bytes: NodeBytes,
    ) -> None:
        self._memory = memory
        self._known = operators
        self._node_bytes = node_bytes
        self._storages = PassStorages(memory)
        self._values = Values(self._storages)
        self._there = Residency(memory, self._storages, self._values, policy)
        self._saved_by: dict[int, list[int]] = {}
        self._node_values: list[int] = []
        self._may_use_cuda = torch.cuda.is_available()
        self._num_storages = 0
        self._first_node = 0

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Context for the forward pass."""
        self._first_node = next_node_number()
        with torch.autograd.graph.saved_tensors_hooks(self.pack, unpack), _Mode(self):
            yield

    def close(self, outputs: Any) -> None:
        """Called after the forward pass, with what it returned."""
        gradients_bytes = sum(
            leaf.nbytes
            for leaf in tree_leaves(outputs)
            if isinstance(leaf, Tensor) and leaf.requires_grad
        )
        self._memory.make_room(gradients_bytes)
        watch(outputs, self._first_node, self, self._memory, self._node_bytes)

    def run(
        self, function: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs an operator of the forward pass."""
        memory, tracker = self._memory, self._values.tracker
        running = Running(tracker, function, args, kwargs)
        if len(tracker.current) > self._num_storages:
            self._keep_resting(running.given)
        key = _key(function, args, kwargs)
        known = self._known.get(key)
        if known is None:
            memory.make_room(max((tensor.nbytes for tensor in running.given), default=0))
        else:
            memory.make_room(known.made_bytes)
        if running.known.writes or running.known.statistics:
            for tensor in written(running.known, args, kwargs):
                number = tracker.storage(tensor, resting=True)
                if number is not None:
                    self._there.before_write(tracker.current[number])
        is_cuda = self._may_use_cuda and any(tensor.is_cuda for tensor in running.given)
        result, cost_us = _timed(function, args, kwargs, is_cuda, known)
        operator = self._values.add(running.done(result), cost_us)
        self._there.made(operator)
        self._num_storages = len(tracker.current)
        if known is None or known.made_bytes != operator.fresh_bytes or cost_us < known.cost_us:
            self._known[key] = KnownOperator(operator.fresh_bytes, cost_us)
        memory.make_room(0)
        return result

    def pack(self, tensor: Tensor) -> Handle | tuple[Tensor, int]:
        """Called as autograd saves a tensor."""
        value = self._value_of(tensor)
        with torch._C._DisableTorchDispatch():  # not operators of the program
            tensor = tensor.detach()  # lest the graph holds itself
            if value is None:
                return tensor, tensor._version
            view, home = TensorView.of(tensor, value), self._values.homes.of(value)
            is_home = home is not None and home == view
            if value not in self._there.tensors:
                # Detached again: a view holds what it is a view of.
                kept = tensor if is_home or home is None else seen_as(tensor, home).detach()
                self._there.keep(value, kept, tensor._version)
        self._there.saved(value)
        # Autograd makes the node first, then saves what it needs.
        self._saved_by.setdefault(next_node_number() - 1, []).append(value)
        return Handle(self, self._there, value, None if is_home else view)

    def before_node(self, node: int) -> None:
        """A node of backward is about to run: what it saved must be there."""
        self.after_node()
        self._node_values = self._there.lock(self._saved_by.get(node, ()))

    def after_node(self) -> None:
        """It has run, or failed."""
        self._there.unlock(self._node_values)
        self._node_values = []

    def _value_of(self, tensor: Tensor) -> int | None:
        """Value of a tensor that may be evicted and made again by its geometry; else None."""
        if (
            tensor.layout is not torch.strided
            or is_made_of_tensors(type(tensor))
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        tracker = self._values.tracker
        number = self._storages.number(tensor.untyped_storage())
        if number is None or tracker.is_resting[number] or not tracker.sizes_bytes[number]:
            return None
        return tracker.current[number]

    def _keep_resting(self, given: list[Tensor]) -> None:
        tracker = self._values.tracker
        for tensor in given:
            number = tracker.storage(tensor, resting=True)
            if number is not None and tracker.is_resting[number]:
                value = tracker.current[number]
                if value in self._there.tensors or tracker.values[value].version:
                    continue
                # One of the graph that holds the pass (what made it was not seen) would hold it in
                # turn. Detached here, below autograd, it has a version of its own.
                made_by = tensor.grad_fn
                if made_by is not None and made_by._sequence_nr() >= self._first_node:
                    tensor = tensor.detach()
                self._there.keep(value, tensor, tensor._version)


class _Mode(TorchDispatchMode):
    """Brings the operators of the forward pass."""

    def __init__(self, online_pass: OnlinePass) -> None:
        super().__init__()
        self._online_pass = online_pass

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(is_made_of_tensors, types)):
            return NotImplemented  # its operators on those come here
        return self._online_pass.run(func, args, kwargs or {})


def unpack(handle: Handle | tuple[Tensor, int]) -> Tensor:
    """The hook: gives a saved tensor back."""
    if type(handle) is tuple:
        tensor, version = handle
        check_version(tensor, version)
        return tensor
    assert isinstance(handle, Handle)
    tensor = handle.there.get(handle.value)
    return tensor if handle.view is None else seen_as(tensor, handle.view)


def _timed(
    function: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_cuda: bool,
    known: KnownOperator | None,
) -> tuple[Any, float]:
    """Result and time of an operator; on a GPU, where that makes it wait, only the first time."""
    if is_cuda and known is not None:
        return function(*args, **kwargs), known.cost_us
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    result = function(*args, **kwargs)
    if is_cuda:
        torch.cuda.synchronize()
    cost_us = (time.perf_counter_ns() - start) / 1000
    return result, cost_us if known is None else min(cost_us, known.cost_us)


def _key(
    function: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """What an operator's time and results' sizes depend on."""
    found: list[Any] = [function]
    for arg in args:
        if isinstance(arg, Tensor):
            found += (arg.shape, arg.dtype, arg.device)
        else:
            found.append(with_views(arg, _geometry))
    for name in sorted(kwargs):
        found += (name, with_views(kwargs[name], _geometry))
    return tuple(found)


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
