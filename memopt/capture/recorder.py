"""Records one training iteration that runs: `record(step)`.

A dispatch mode sees every operator of forward and backward, saved-tensor hooks see what autograd
keeps, and an object on each storage sees its end. Nothing of it remains after the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _current_graph_task_id
from torch.utils._python_dispatch import TorchDispatchMode

from memopt.capture.lifetimes import Lifetimes
from memopt.capture.operators import (
    Facts,
    facts,
    replay_of,
    updated_statistics,
    with_views,
    written,
)
from memopt.capture.pattern import digest
from memopt.capture.recording import Call, Recording, TensorView
from memopt.capture.saving import SavedTensors
from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value

_ONE_AT_A_TIME = Lock()


def record(
    step: Callable[[], object],
    *,
    resting: Iterable[nn.Module | Tensor] = (),
    calls: bool = False,
    copy_saved: bool = False,
) -> Recording:
    """Runs `step` once and records it; what it computes is what it computes without.

    Args:
        step: forward and backward passes of one iteration, any number of each. What it returns
            counts as a result of the iteration, and is let go.
        resting: models and tensors there before and after; their storages come first and have
            names. Others that the step finds are resting too, without a name.
        calls: keep each operator's arguments, for replays. They hold no tensors.
        copy_saved: autograd saves copies, so that `program_last_use` can be told. Takes the copies'
            memory, and does not notice an in-place change of what was saved.

    Raises:
        MemoptError: a recording is under way, the step runs no backward pass, or changes a tensor
            in place that backward needs.
        Exception: what the step raises.
    """
    recorder = Recorder(copy_saved=copy_saved)
    with recorder.recording():
        names = recorder.name_resting(resting)
        returned = step()
        recorder.close()
    del returned
    return recorder.result(names, keep_calls=calls)


class Recorder(TorchDispatchMode):
    """The dispatch mode and what it has seen so far. `record` is what users call."""

    def __init__(self, *, copy_saved: bool, is_fake: bool = False) -> None:
        super().__init__()
        self._may_use_cuda = torch.cuda.is_available() and not is_fake
        self.lifetimes = Lifetimes()
        self.is_open = True
        self.calls: list[Call] = []
        self._saving = SavedTensors(self, copy=copy_saved)
        self._copy_saved = copy_saved
        self._paused = False
        self._sizes_bytes: list[int] = []
        self._resting: list[bool] = []
        self._current: list[int] = []  # value that each storage holds
        self._values: list[Value] = []
        self._operators: list[tuple[Facts, tuple[int, ...], tuple[int, ...], Replay, bool]] = []
        self._costs: list[float | tuple[Any, Any]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context in which operators and saved tensors are recorded."""
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise MemoptError("a recording is under way: record one step at a time, outside others")
        with ExitStack() as stack:
            stack.callback(_ONE_AT_A_TIME.release)
            stack.callback(self.close)
            stack.enter_context(self._saving.hooks())
            stack.enter_context(self)
            yield

    def close(self) -> None:
        """Ends the recording: what is alive now outlives the iteration."""
        self.is_open = self.lifetimes.is_open = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The recorder's own operators are not part of the iteration."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def name_resting(self, resting: Iterable[nn.Module | Tensor]) -> dict[str, int]:
        """Numbers what is there before, in the order given; storages by name."""
        names = {}
        for position, thing in enumerate(resting):
            if isinstance(thing, nn.Module):
                for name, tensor in [*thing.named_parameters(), *thing.named_buffers()]:
                    names[f"{position}.{name}"] = self._storage(tensor, resting=True)
            else:
                names[str(position)] = self._storage(thing, resting=True)
        return {name: number for name, number in names.items() if number is not None}

    def view(self, tensor: Tensor) -> TensorView:
        """A tensor by value and geometry. One never seen before was there before."""
        number = self._storage(tensor, resting=True)
        return TensorView.of(tensor, None if number is None else self._current[number])

    def is_resting(self, value: int) -> bool:
        """Whether a value is of a storage that was there before."""
        return self._resting[self._values[value].storage]

    def result(
        self, names: dict[str, int], *, keep_calls: bool, costs_us: list[float] | None = None
    ) -> Recording:
        """What was recorded.

        Args:
            names: of resting storages.
            keep_calls: whether it holds the calls.
            costs_us: of each operator; None for the measured ones.
        """
        if not any(backward for *_, backward in self._operators):
            raise MemoptError(
                f"the recorded step ran {len(self._operators)} operators and no backward pass: "
                "give one that calls backward() on its loss"
            )
        num_operators, lifetimes = len(self._operators), self.lifetimes
        storages, last_use, program_last_use = [], [], []
        for number, size_bytes in enumerate(self._sizes_bytes):
            alive = lifetimes.num_alive[number] > 0
            role = Role.RESULT if alive else Role.ACTIVATION
            storages.append(Storage(size_bytes, Role.RESTING if self._resting[number] else role))
            last_use.append(num_operators if alive else lifetimes.last_use[number])
            dropped = lifetimes.program_last_use[number]
            program_last_use.append(num_operators if dropped is None else dropped)
        saved = self._saving.saved(num_operators)
        graph = OpGraph(
            storages=tuple(storages),
            values=tuple(self._values),
            operators=tuple(
                Operator(known.name, reads, makes, cost_us, replay, backward)
                for (known, reads, makes, replay, backward), cost_us in zip(
                    self._operators, costs_us or self._measured_us(), strict=True
                )
            ),
            last_use=tuple(last_use),
            saved=tuple(s.view.value for s in saved if s.view.value is not None),
        )
        unpacks = self._saving.unpacks()
        return Recording(
            graph=graph,
            saved=saved,
            unpacks=unpacks,
            program_last_use=tuple(program_last_use) if self._copy_saved else None,
            resting_names=names,
            calls=tuple(self.calls) if keep_calls else None,
            pattern=digest(graph, self.calls, saved, unpacks),
        )

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or not self.is_open or func.namespace == "prim":
            return func(*args, **kwargs)  # of `prim` only fake tensors are asked, for their device
        if any(map(_is_made_of_tensors, types)):
            return NotImplemented  # its operators on those come here
        known = facts(func)
        given: list[Tensor] = []
        reads: dict[int, None] = {}

        def argument(tensor: Tensor) -> TensorView:
            given.append(tensor)
            view = self.view(tensor)
            if view.value is not None:
                reads[view.value] = None
            return view

        call_args = with_views(args, argument)
        call_kwargs = {name: with_views(value, argument) for name, value in kwargs.items()}
        cost: float | tuple[Any, Any]
        if self._may_use_cuda and any(tensor.is_cuda for tensor in given):
            cost = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            cost[0].record()
            result = func(*args, **kwargs)
            cost[1].record()
        else:
            start = time.perf_counter_ns()
            result = func(*args, **kwargs)
            cost = (time.perf_counter_ns() - start) / 1000
        self._costs.append(cost)

        self.lifetimes.now += 1
        first_new = len(self._sizes_bytes)
        call_results = with_views(result, self._result)
        makes = dict.fromkeys(self._current[first_new:])
        replay = replay_of(known, args, kwargs)
        if any(map(_cannot_be_rebuilt, given)):
            replay = Replay.NEVER
        if known.writes or known.statistics:
            if not self._write(known, args, kwargs, reads, makes):
                replay = Replay.NEVER
            call_results = with_views(result, self._result)
        self.calls.append(Call(func, call_args, call_kwargs, call_results))
        backward = _current_graph_task_id() != -1
        self._operators.append((known, tuple(reads), tuple(makes), replay, backward))
        return result

    def _write(
        self,
        known: Facts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reads: dict[int, None],
        makes: dict[int, None],
    ) -> bool:
        """Adds what a call that has run wrote to; whether all of that was the iteration's own."""
        is_own = True
        statistics = {id(tensor) for tensor in updated_statistics(known, args, kwargs)}
        for tensor in written(known, args, kwargs):
            number = self._storage(tensor, resting=True)
            if number is None:
                is_own = False
                continue
            self._sizes_bytes[number] = max(
                self._sizes_bytes[number], tensor.untyped_storage().nbytes()
            )
            held = self._current[number]
            if held in makes:
                continue  # one storage through several arguments
            if id(tensor) in statistics:
                reads.pop(held, None)
            elif self._resting[number]:
                is_own = False
            makes[self._new_value(number, self._values[held].version + 1)] = None
        return is_own

    def _result(self, tensor: Tensor) -> TensorView:
        number = self._storage(tensor, resting=False)
        return TensorView.of(tensor, None if number is None else self._current[number])

    def _storage(self, tensor: Tensor, *, resting: bool) -> int | None:
        """Number of a tensor's storage, new if not seen before; None if it has no single one."""
        if tensor.layout is not torch.strided or _is_made_of_tensors(type(tensor)):
            return None
        storage = tensor.untyped_storage()
        number = self.lifetimes.number(storage)
        if number is None:
            number = self.lifetimes.begin(storage)
            self._sizes_bytes.append(storage.nbytes())
            self._resting.append(resting)
            self._current.append(-1)
            self._new_value(number, version=0)
        return number

    def _new_value(self, storage: int, version: int) -> int:
        self._values.append(Value(storage, version))
        self._current[storage] = len(self._values) - 1
        return self._current[storage]

    def _measured_us(self) -> list[float]:
        if any(isinstance(cost, tuple) for cost in self._costs):
            torch.cuda.synchronize()
        return [
            cost[0].elapsed_time(cost[1]) * 1000 if isinstance(cost, tuple) else cost
            for cost in self._costs
        ]


@cache
def _is_made_of_tensors(kind: type) -> bool:
    """Such as DTensor, see torch.utils._python_dispatch.is_traceable_wrapper_subclass."""
    return hasattr(kind, "__tensor_flatten__")


def _cannot_be_rebuilt(tensor: Tensor) -> bool:
    """A replay has storages and strides only."""
    return tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
