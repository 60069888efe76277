"""One forward pass and its backward passes under a program, by saved-tensor hooks.

In steady state no dispatch mode is on: `pack` decides by ordinal whether a tensor stays, `unpack`
runs again what a node of backward asks for. All state is in the pass, which the autograd graph
holds through its handles; it goes with it. Several forward passes may wait for their backward.

What goes another way than planned is still right, if slower: a graph that is kept, or derived in
part, nodes in another order. Values are then made again one by one, from what is there. Where the
forward pass itself goes another way, its tensors from there on are kept, and others dropped for
them while there are any. A recomputed tensor is compared with elements noted when it was dropped.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from memopt.errors import MemoptError
from memopt.execute.guards import below_autograd, check_version
from memopt.execute.program import Packed, Program, Step
from memopt.execute.replay_step import Tensors, seen_as

_NUM_PROBES = 4
PROBE_BYTES = 8 * _NUM_PROBES
"""What is noted of a dropped tensor, at most; complex numbers are twice that."""


class Handle:
    """What autograd holds for a saved tensor that is the pass's to keep or drop."""

    __slots__ = ("__weakref__", "ordinal", "owner", "tensor", "version")

    def __init__(self, owner: PlannedPass, ordinal: int, tensor: Tensor | None) -> None:
        self.owner = owner
        self.ordinal = ordinal
        self.tensor = tensor  # of a pinned one
        self.version = 0 if tensor is None else tensor._version


class PlannedPass:
    """Hooks of one forward pass; use `hooks()` around it.

    Args:
        program: what to do.
        resting: values that the model and its inputs hold, by number.
        recomputed: called with the seconds that a recomputation took.

    Attributes:
        diverged_at: ordinal from which on the forward pass was another than planned; None if it
            was not.
    """

    def __init__(
        self,
        program: Program,
        resting: Tensors,
        recomputed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.program = program
        self._recomputed = recomputed
        self.diverged_at: int | None = None
        self._packed = program.packed
        self._resting = resting
        self._versions = {value: tensor._version for value, tensor in resting.items()}
        self._tensors: Tensors = dict(resting)
        self._pinned: dict[int, weakref.ref[Handle]] = {}
        self._probes: dict[int, Tensor] = {}
        self._kept_versions: dict[int, int] = {}
        self._left = [group.size for group in program.groups]
        self._next = 0
        self._unplanned_bytes: dict[int, int] = {}

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Context for the forward pass."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, unpack)

    def close(self, outputs: object = None) -> None:
        """Called after the forward pass."""
        if self.diverged_at is None and self._next != len(self._packed):
            self.diverged_at = self._next

    def pack(self, tensor: Tensor) -> Handle | tuple[Tensor, int]:
        """Called as autograd saves a tensor."""
        if tensor.grad_fn is not None:
            tensor = tensor.detach()  # lest the graph holds itself, out of reach of any collector
        ordinal = self._next
        self._next = ordinal + 1
        if self.diverged_at is not None:
            return self._unplanned(tensor)
        if ordinal >= len(self._packed):
            self.diverged_at = ordinal
            return self._unplanned(tensor)
        planned = self._packed[ordinal]
        if tensor.shape != planned.shape or tensor.dtype != planned.dtype:
            self.diverged_at = ordinal
            return self._unplanned(tensor)
        value = planned.value
        if tensor.is_conj() or tensor.is_neg():
            return tensor, tensor._version  # a geometry does not say so
        if value < 0:
            if planned.resting >= 0 and not _same_memory(tensor, self._resting[planned.resting]):
                self.diverged_at = ordinal
                return self._unplanned(tensor)
            return tensor, tensor._version
        if planned.is_pinned:
            handle = Handle(self, ordinal, tensor)
            self._pinned[value] = weakref.ref(handle)
            return handle
        if planned.stays:
            if value not in self._tensors:
                self._tensors[value] = tensor if planned.is_home else self._at_home(tensor, value)
                self._kept_versions[value] = tensor._version
        elif value not in self._probes:
            self._probes[value] = _probe(
                tensor if planned.is_home else self._at_home(tensor, value)
            )
        return Handle(self, ordinal, None)

    def _unplanned(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Keeps what the plan does not know, and drops what it does instead, cheapest first."""
        storage = tensor.untyped_storage()
        known = {kept.untyped_storage().data_ptr() for kept in self._tensors.values()}
        if storage.data_ptr() not in known | self._unplanned_bytes.keys():
            self._unplanned_bytes[storage.data_ptr()] = storage.nbytes()
            spare = self.program.most_kept_bytes - sum(self._unplanned_bytes.values())
            kept = [value for value in self._tensors if self.program.step_of(value) is not None]
            total = sum(self.program.size_bytes(value) for value in kept)
            for value in sorted(kept, key=self.program.cost_of_a_byte_us):
                if total <= spare:
                    break
                self._probes[value] = _probe(self._drop(value))
                total -= self.program.size_bytes(value)
        return tensor, tensor._version

    def unpack(self, handle: Handle) -> Tensor:
        """Called as a node of backward asks for what it saved."""
        planned = self._packed[handle.ordinal]
        number = planned.group
        if number < 0:
            return self._one(handle, planned)
        group = self.program.groups[number]
        if self._left[number] == group.size and group.targets:
            start = time.perf_counter()
            self._remake_group(number)
            self._recomputed(time.perf_counter() - start)
        tensor = self._one(handle, planned)
        self._left[number] -= 1
        if self._left[number] == 0:
            self._left[number] = group.size
            for value in group.releases:
                if value in self._tensors:
                    self._drop(value)
        return tensor

    def _drop(self, value: int) -> Tensor:
        """Lets go of a kept value; one that is made again later has a version of its own."""
        self._kept_versions.pop(value, None)
        return self._tensors.pop(value)

    def _one(self, handle: Handle, planned: Packed) -> Tensor:
        if handle.tensor is not None:
            check_version(handle.tensor, handle.version)
            return handle.tensor
        value = planned.value
        if value not in self._tensors:
            self._remake([value])
        tensor = self._tensors[value]
        if (version := self._kept_versions.get(value)) is not None:
            check_version(tensor, version)
        return tensor if planned.is_home else seen_as(tensor, planned.view)

    def _at_home(self, tensor: Tensor, value: int) -> Tensor:
        home = self.program.homes.of(value)
        assert home is not None
        return seen_as(tensor, home)

    def _remake_group(self, number: int) -> None:
        group, tensors = self.program.groups[number], self._tensors
        missing = [value for value in group.targets if value not in tensors]
        with self._leaves(group.leaves) as are_there:
            if not are_there or len(missing) < len(group.targets):
                self._remake(missing)
                return
            with below_autograd():
                for step, frees in group.steps:
                    step.run(tensors)
                    for value in frees:
                        tensors.pop(value, None)  # gone already if written over
        self._check(missing)

    def _remake(self, values: Sequence[int]) -> None:
        """Makes values again, with what that needs and is not there, in program order."""
        program, tensors = self.program, self._tensors
        steps: dict[int, Step] = {}
        needed, leaves = set(values), set[int]()
        open_values = list(values)
        while open_values:
            value = open_values.pop()
            step = program.step_of(value)
            if step is None:
                raise MemoptError(
                    "backward asks for a tensor whose recomputation needs one that is gone: keep "
                    "the graph whole (retain_graph), or train without a memory budget"
                )
            steps[program.order_of(value)] = step
            for read in step.reads:
                if read in needed or read in leaves:
                    continue
                if read in tensors or self._pinned_tensor(read) is not None:
                    leaves.add(read)
                else:
                    needed.add(read)
                    open_values.append(read)
        order = sorted(steps)
        last_reader = {read: number for number in order for read in steps[number].reads}
        there = set(tensors)
        with self._leaves(leaves), below_autograd():
            for number in order:
                step = steps[number]
                step.run(tensors)
                for value in {*step.makes, *step.reads} & tensors.keys():
                    is_temporary = value not in there and value not in values
                    if is_temporary and last_reader.get(value, -1) <= number:
                        del tensors[value]
        self._check(values)

    def _pinned_tensor(self, value: int) -> Tensor | None:
        held = self._pinned.get(value)
        handle = None if held is None else held()
        return None if handle is None else handle.tensor

    @contextmanager
    def _leaves(self, values: Iterable[int]) -> Iterator[bool]:
        """Puts pinned ones of what a replay reads among the others; whether all are there."""
        added, all_there = [], True
        for value in values:
            if value in self._resting:
                if self._resting[value]._version != self._versions[value]:
                    raise MemoptError(
                        f"{self.program.resting[value]} was changed in place between forward and "
                        "backward, and the memory plan needs it: change it after backward"
                    )
            elif value in self._tensors:
                continue
            elif (tensor := self._pinned_tensor(value)) is not None:
                home = self.program.homes.of(value)
                planned_view = self._packed[self._pinned_ordinal(value)].view
                self._tensors[value] = (
                    tensor if home == planned_view else self._at_home(tensor, value)
                )
                added.append(value)
            else:
                all_there = False
        try:
            yield all_there
        finally:
            for value in added:
                self._tensors.pop(value, None)

    def _pinned_ordinal(self, value: int) -> int:
        handle = self._pinned[value]()
        assert handle is not None
        return handle.ordinal

    def _check(self, values: Iterable[int]) -> None:
        """Compares what was made again with what was noted of it."""
        for value in values:
            probe = self._probes.get(value)
            if probe is not None and not _same_bits(probe, _probe(self._tensors[value])):
                raise MemoptError(
                    "a recomputed tensor differs from the one that was dropped: the forward pass "
                    "does something that changes from step to step unseen (a number, a branch); "
                    "train it with an online policy: memopt.budget(model, ..., policy='dtr')"
                )


def unpack(handle: Handle | tuple[Tensor, int]) -> Tensor:
    """The hook: gives a saved tensor back."""
    if type(handle) is tuple:
        tensor, version = handle
        check_version(tensor, version)
        return tensor
    assert isinstance(handle, Handle)
    return handle.owner.unpack(handle)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _probe(tensor: Tensor) -> Tensor:
    """A copy of a few elements; only one of a tensor that does not fill its memory."""
    length = tensor.numel()
    if length * tensor.itemsize != tensor.untyped_storage().nbytes() or length == 0:
        return tensor.reshape(-1)[:1].clone() if length < 2 else tensor[(0,) * tensor.dim()].clone()
    step = max(length // _NUM_PROBES, 1)
    return tensor.as_strided((min(_NUM_PROBES, length),), (step,), length % step // 2).clone()


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.equal(one.view(torch.uint8), other.view(torch.uint8))
