"""Follows operators as they run: which value each storage holds, what each one reads and makes.

Shared by what records an iteration and what trains under an online policy; each brings its own
numbers of storages.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from memopt.capture.operators import (
    Facts,
    facts,
    replay_of,
    updated_statistics,
    with_views,
    written,
)
from memopt.capture.recording import Call, TensorView
from memopt.graph import Replay, Value


class StorageNumbers(Protocol):
    """Numbers storages 0, 1, ... in the order of `begin`."""

    def number(self, storage: torch.UntypedStorage) -> int | None:
        """Number of a storage; None for one not seen before."""

    def begin(self, storage: torch.UntypedStorage, *, resting: bool) -> int:
        """Numbers a new storage; `resting`: it was there before, nothing seen made it."""


class Ran(NamedTuple):
    """What an operator did."""

    known: Facts
    call: Call
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    replay: Replay


class Tracker:
    """Numbers of values.

    Attributes:
        values: by number.
        sizes_bytes: by storage, the largest so far.
        is_resting: by storage, whether it was there before.
        current: by storage, the number of the value that it holds.
    """

    def __init__(self, numbers: StorageNumbers) -> None:
        self.values: list[Value] = []
        self.sizes_bytes: list[int] = []
        self.is_resting: list[bool] = []
        self.current: list[int] = []
        self._numbers = numbers

    def view(self, tensor: Tensor) -> TensorView:
        """A tensor by value and geometry. One never seen before was there before."""
        number = self.storage(tensor, resting=True)
        return TensorView.of(tensor, None if number is None else self.current[number])

    def storage(self, tensor: Tensor, *, resting: bool) -> int | None:
        """Number of a tensor's storage, new if not seen before; None if it has no single one."""
        if tensor.layout is not torch.strided or is_made_of_tensors(type(tensor)):
            return None
        storage = tensor.untyped_storage()
        number = self._numbers.number(storage)
        if number is None:
            number = self._numbers.begin(storage, resting=resting)
            self.sizes_bytes.append(storage.nbytes())
            self.is_resting.append(resting)
            self.current.append(-1)
            self.new_value(number, version=0)
        return number

    def new_value(self, storage: int, version: int) -> int:
        """Number of the value that a storage holds from now on."""
        self.values.append(Value(storage, version))
        self.current[storage] = len(self.values) - 1
        return self.current[storage]


class Running:
    """One operator, from its arguments to its results.

    Attributes:
        known: facts of the operator.
        given: tensors in its arguments.
    """

    def __init__(
        self,
        tracker: Tracker,
        function: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.known = facts(function)
        self.given: list[Tensor] = []
        self._tracker = tracker
        self._function, self._args, self._kwargs = function, args, kwargs
        self._reads: dict[int, None] = {}
        self._call_args = with_views(args, self._argument)
        self._call_kwargs = {name: with_views(arg, self._argument) for name, arg in kwargs.items()}

    def done(self, result: Any) -> Ran:
        """Called once it has run."""
        tracker, known = self._tracker, self.known
        first_new = len(tracker.current)
        call_results = with_views(result, self._result)
        makes = dict.fromkeys(tracker.current[first_new:])
        replay = replay_of(known, self._args, self._kwargs)
        if any(map(_cannot_be_rebuilt, self.given)):
            replay = Replay.NEVER
        if known.writes or known.statistics:
            if not self._write(makes):
                replay = Replay.NEVER
            call_results = with_views(result, self._result)
        call = Call(self._function, self._call_args, self._call_kwargs, call_results)
        return Ran(known, call, tuple(self._reads), tuple(makes), replay)

    def _argument(self, tensor: Tensor) -> TensorView:
        self.given.append(tensor)
        view = self._tracker.view(tensor)
        if view.value is not None:
            self._reads[view.value] = None
        return view

    def _result(self, tensor: Tensor) -> TensorView:
        number = self._tracker.storage(tensor, resting=False)
        return TensorView.of(tensor, None if number is None else self._tracker.current[number])

    def _write(self, makes: dict[int, None]) -> bool:
        """Adds what was written to; whether all of that was made since the start."""
        tracker, is_own = self._tracker, True
        args, kwargs = self._args, self._kwargs
        statistics = {id(tensor) for tensor in updated_statistics(self.known, args, kwargs)}
        for tensor in written(self.known, args, kwargs):
            number = tracker.storage(tensor, resting=True)
            if number is None:
                is_own = False
                continue
            tracker.sizes_bytes[number] = max(
                tracker.sizes_bytes[number], tensor.untyped_storage().nbytes()
            )
            held = tracker.current[number]
            if held in makes:
                continue  # one storage through several arguments
            if id(tensor) in statistics:
                self._reads.pop(held, None)
            elif tracker.is_resting[number]:
                is_own = False
            makes[tracker.new_value(number, tracker.values[held].version + 1)] = None
        return is_own


@cache
def is_made_of_tensors(kind: type) -> bool:
    """Such as DTensor, see torch.utils._python_dispatch.is_traceable_wrapper_subclass."""
    return hasattr(kind, "__tensor_flatten__")


def _cannot_be_rebuilt(tensor: Tensor) -> bool:
    """A replay has storages and strides only."""
    return tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
