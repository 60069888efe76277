"""The second engine: Horovod, gloo on CPU, NCCL on GPU where it was built with it.

    facetrain horovod build
    facetrain train lfw --engine horovod --data lfw112 --protocols protocols

Horovod reduces and moves few element types, and bf16 not at all: others travel as integers of their
size and are summed in a wider type (bf16 and fp16 in fp32), rounded once. Small tensors are not
fused into one, which would make the order of a sum depend on timing. Reduce-scatter is an
all-to-all whose parts are summed here in rank order, for Horovod cuts evenly only.

https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch
"""

from __future__ import annotations

import functools
import importlib
import math
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from facetrain.distributed.communicator import Communicator, Pending, check_group_size
from facetrain.distributed.horovod_meeting import join
from facetrain.distributed.peers import meeting, peers_alive
from facetrain.distributed.single import SingleCommunicator
from facetrain.distributed.world import World
from facetrain.errors import FacetrainError

T = TypeVar("T")

_MOVED_AS = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}
_REDUCED_AS = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}
_MOST_ELEMENTS = 2**31 - 1  # Horovod counts in int32
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 5e-4


def load_horovod() -> Any:
    """The module `horovod.torch`.

    Raises:
        FacetrainError: it is not installed, or was built for another torch.
    """
    try:
        horovod = importlib.import_module("horovod.torch")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "horovod"
        found = "is not installed" if missing else f"cannot be imported ({error})"
    else:
        if hasattr(horovod, "init"):
            return horovod
        found = "was built without torch"
    raise FacetrainError(f"--engine horovod: Horovod {found}; run `facetrain horovod build`")


class HorovodCommunicator:
    """Collectives over all ranks by Horovod.

    Args:
        world: this process's place, as its launcher gave it.
        device: where tensors of the collectives lie.
        timeout_s: a collective that waits longer fails, in seconds.

    Raises:
        PeerLostError: other ranks did not come.
        FacetrainError: Horovod is not installed, or the launcher did not say where to meet.
    """

    def __init__(self, world: World, device: torch.device, timeout_s: float) -> None:
        self.rank = world.rank
        self.world_size = world.world_size
        self.device = device
        self._timeout_s = timeout_s
        self._alive = functools.partial(peers_alive, timeout_s)
        self._num_started = self._num_pending = 0
        self._horovod = load_horovod()
        self._operations = {"sum": self._horovod.Sum, "max": self._horovod.Max}
        with meeting(world, timeout_s), join(world, timeout_s):
            self._horovod.init()
            self.barrier()

    def all_gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        if sum(counts) == 0:
            return rows
        gathered_shape = (sum(counts), *rows.shape[1:])
        moved = _as_moved(rows, gathered_shape)
        name = _name("all_gather", moved.dtype, gathered_shape)
        with self._alive():
            gathered = self._wait(self._horovod.allgather_async(moved, name=name))
        return gathered.view(rows.dtype)

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        own = counts[self.rank]
        name = _name("reduce_scatter", rows.dtype, rows.shape)
        received = self._exchange(rows, counts, [own] * self.world_size, name)
        parts = received.view(self.world_size, own, *rows.shape[1:])
        total = parts[0].to(_REDUCED_AS.get(rows.dtype, rows.dtype), copy=True)
        for part in parts[1:]:
            total += part
        return total.to(rows.dtype)

    def all_reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        self._start_all_reduce(values, reduction, reduction).wait()
        return values

    def all_reduce_async(self, values: Tensor) -> Pending:
        # Two of the same name must not be under way at a time. All ranks count alike, and a step
        # begins again at 0: Horovod is fast for names that it has seen before.
        slot = self._num_started = self._num_started + 1 if self._num_pending else 0
        self._num_pending += 1
        return self._start_all_reduce(values, "sum", f"sum{slot}", self._on_done)

    def all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        name = _name("all_to_all", rows.dtype, rows.shape[1:])
        return self._exchange(rows, send_counts, receive_counts, name)

    def broadcast(self, values: Tensor, source: int = 0) -> Tensor:
        if values.numel() == 0:
            return values
        moved = _as_moved(values, values.shape)
        name = _name(f"broadcast{source}", moved.dtype, moved.shape)
        with self._alive():
            self._wait(self._horovod.broadcast_async_(moved, source, name=name))
        return values

    def broadcast_object(self, value: T, source: int = 0) -> T:
        own = self.rank == source
        data = _to_bytes(value) if own else torch.empty(0, dtype=torch.uint8)
        size = self.broadcast(torch.tensor([len(data)]), source)
        if not own:
            data = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(data, source)
        return value if own else pickle.loads(data.numpy().tobytes())

    def all_gather_object(self, value: T) -> list[T]:
        data = _to_bytes(value)
        sizes = self.all_gather(torch.tensor([len(data)]), [1] * self.world_size).tolist()
        parts = self.all_gather(data, sizes).split(sizes)
        return [pickle.loads(part.numpy().tobytes()) for part in parts]

    def split(self, group_size: int) -> tuple[Communicator, Communicator]:
        check_group_size(group_size, self.world_size)
        alone = SingleCommunicator(self.device)
        if group_size == 1:
            return alone, self
        if group_size == self.world_size:
            return self, alone
        # Its process sets would need a controller thread of their own for each group.
        raise FacetrainError(
            f"groups of {group_size} of {self.world_size} processes (--head-ranks) need "
            "--engine torch; with Horovod they are of one process or of all"
        )

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1))

    def close(self) -> None:
        self.barrier()
        self._horovod.shutdown()

    def _exchange(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], name: str
    ) -> Tensor:
        moved = _as_moved(rows, rows.shape)
        splits = torch.tensor(send_counts, dtype=torch.int32)
        with self._alive():
            received, _ = self._wait(self._horovod.alltoall_async(moved, splits, name=name))
        return received.view(rows.dtype).view(sum(receive_counts), *rows.shape[1:])

    def _start_all_reduce(
        self,
        values: Tensor,
        reduction: str,
        kind: str,
        on_done: Callable[[], None] = lambda: None,
    ) -> _PendingReduction:
        _check_size(values.shape)
        sent = values.detach().to(_REDUCED_AS.get(values.dtype, values.dtype))
        name = _name(f"all_reduce.{kind}", values.dtype, values.shape)
        with self._alive():
            handle = self._horovod.allreduce_async_(sent, op=self._operations[reduction], name=name)

        def finish() -> None:
            with self._alive():
                self._wait(handle)
            if sent.data_ptr() != values.data_ptr():
                values.copy_(sent)
            on_done()

        return _PendingReduction(finish)

    def _on_done(self) -> None:
        self._num_pending -= 1

    def _wait(self, handle: int) -> Any:
        """The result; Horovod's own wait would keep a core busy and has no time-out."""
        deadline = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while not self._horovod.poll(handle):
            if time.monotonic() > deadline:
                raise RuntimeError("no answer")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return self._horovod.synchronize(handle)


class _PendingReduction:
    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


def _as_moved(values: Tensor, whole_shape: Sequence[int]) -> Tensor:
    """The same memory, as a type that Horovod moves.

    Args:
        whole_shape: of the largest tensor that comes of it.
    """
    _check_size(whole_shape)
    return values.detach().contiguous().view(_MOVED_AS.get(values.dtype, values.dtype))


def _check_size(shape: Sequence[int]) -> None:
    if math.prod(shape) > _MOST_ELEMENTS:
        raise FacetrainError(
            f"--engine horovod: moves at most {_MOST_ELEMENTS:,} numbers at a time, this tensor "
            f"has {math.prod(shape):,}; use --engine torch, or more processes"
        )


def _name(kind: str, dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Equal on all ranks, and the same again whenever a tensor of that kind comes."""
    return f"{kind}.{str(dtype).removeprefix('torch.')}.{'x'.join(map(str, shape))}"


def _to_bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
