"""Records one training iteration that runs: `record(step)`.

A dispatch mode sees every operator of forward and backward, saved-tensor hooks see what autograd
keeps, and an object on each storage sees its end. Nothing of it remains after the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _current_graph_task_id
from torch.utils._python_dispatch import TorchDispatchMode

from memopt.capture.lifetimes import Lifetimes
from memopt.capture.operators import Facts
from memopt.capture.pattern import digest
from memopt.capture.recording import Call, Recording, TensorView
from memopt.capture.saving import SavedTensors
from memopt.capture.tracking import Running, Tracker, is_made_of_tensors
from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage

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
        self._tracker = Tracker(self.lifetimes)
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
                    names[f"{position}.{name}"] = self._tracker.storage(tensor, resting=True)
            else:
                names[str(position)] = self._tracker.storage(thing, resting=True)
        return {name: number for name, number in names.items() if number is not None}

    def view(self, tensor: Tensor) -> TensorView:
        """A tensor by value and geometry. One never seen before was there before."""
        return self._tracker.view(tensor)

    def is_resting(self, value: int) -> bool:
        """Whether a value is of a storage that was there before."""
        return self._tracker.is_resting[self._tracker.values[value].storage]

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
        num_operators, lifetimes, tracker = len(self._operators), self.lifetimes, self._tracker
        storages, last_use, program_last_use = [], [], []
        for number, size_bytes in enumerate(tracker.sizes_bytes):
            alive = lifetimes.num_alive[number] > 0
            role = Role.RESULT if alive else Role.ACTIVATION
            storages.append(
                Storage(size_bytes, Role.RESTING if tracker.is_resting[number] else role)
            )
            last_use.append(num_operators if alive else lifetimes.last_use[number])
            dropped = lifetimes.program_last_use[number]
            program_last_use.append(num_operators if dropped is None else dropped)
        saved = self._saving.saved(num_operators)
        graph = OpGraph(
            storages=tuple(storages),
            values=tuple(tracker.values),
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
        if any(map(is_made_of_tensors, types)):
            return NotImplemented  # its operators on those come here
        running = Running(self._tracker, func, args, kwargs)
        cost: float | tuple[Any, Any]
        if self._may_use_cuda and any(tensor.is_cuda for tensor in running.given):
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
        ran = running.done(result)
        self.calls.append(ran.call)
        backward = _current_graph_task_id() != -1
        self._operators.append((ran.known, ran.reads, ran.makes, ran.replay, backward))
        return result

    def _measured_us(self) -> list[float]:
        if any(isinstance(cost, tuple) for cost in self._costs):
            torch.cuda.synchronize()
        return [
            cost[0].elapsed_time(cost[1]) * 1000 if isinstance(cost, tuple) else cost
            for cost in self._costs
        ]
