"""The default engine: `torch.distributed`, gloo on CPU and NCCL on GPU.

gloo's all-gather and reduce-scatter take equal shares only, so uneven shares are padded to the
largest; even shares travel as they are.
"""

from __future__ import annotations

import copy
import datetime
import functools
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from facetrain.distributed.communicator import Communicator, Pending, check_group_size
from facetrain.distributed.peers import meeting, peers_alive
from facetrain.distributed.single import SingleCommunicator
from facetrain.distributed.world import World

T = TypeVar("T")

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class _PendingWork:
    def __init__(self, work: dist.Work, timeout_s: float) -> None:
        self._work = work
        self._timeout_s = timeout_s

    def wait(self) -> None:
        with peers_alive(self._timeout_s):
            self._work.wait()


class TorchCommunicator:
    """Collectives of the default `torch.distributed` process group, or of a part of it.

    Args:
        world: this process's place, as its launcher gave it.
        device: where tensors of the collectives lie.
        timeout_s: a collective that waits longer fails, in seconds.

    Raises:
        PeerLostError: other ranks did not come.
        FacetrainError: the launcher did not say where to meet them.
    """

    def __init__(self, world: World, device: torch.device, timeout_s: float) -> None:
        self.rank = world.rank
        self.world_size = world.world_size
        self.device = device
        self._timeout_s = timeout_s
        self._group: dist.ProcessGroup | None = None  # all ranks
        self._ranks = list(range(world.world_size))
        self._alive = functools.partial(peers_alive, timeout_s)
        with meeting(world, timeout_s):
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                init_method=world.init_method,
                rank=world.rank,
                world_size=world.world_size,
                timeout=datetime.timedelta(seconds=timeout_s),
                device_id=device if device.type == "cuda" else None,
            )

    def split(self, group_size: int) -> tuple[Communicator, Communicator]:
        check_group_size(group_size, self.world_size)
        ranks = torch.arange(self.world_size).view(-1, group_size)
        return self._part(ranks.tolist()), self._part(ranks.T.tolist())

    def _part(self, parts: Sequence[Sequence[int]]) -> Communicator:
        """The part that this rank is in; every rank passes the same parts, of equal sizes."""
        if len(parts) == 1:
            return self
        if len(parts) == self.world_size:
            return SingleCommunicator(self.device)
        part = copy.copy(self)
        timeout = datetime.timedelta(seconds=self._timeout_s)
        for ranks in parts:
            with self._alive():
                group = dist.new_group(ranks, timeout=timeout)
            if self.rank in ranks:
                part._group, part._ranks = group, list(ranks)
                part.rank, part.world_size = ranks.index(self.rank), len(ranks)
        return part

    def all_gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        largest = max(counts)
        if largest == 0:
            return rows
        padded = _pad(rows, largest)
        gathered = padded.new_empty((self.world_size * largest, *rows.shape[1:]))
        with self._alive():
            dist.all_gather_single(gathered, padded, group=self._group)
        if min(counts) == largest:
            return gathered
        parts = gathered.split(largest)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        largest = max(counts)
        own = counts[self.rank]
        if largest == 0:
            return rows
        if min(counts) < largest:
            parts = rows.split(list(counts))
            rows = torch.cat([_pad(part, largest) for part in parts])
        reduced = rows.new_empty((largest, *rows.shape[1:]))
        with self._alive():
            dist.reduce_scatter_single(reduced, rows.contiguous(), group=self._group)
        return reduced[:own]

    def all_reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        with self._alive():
            dist.all_reduce(values, _OPERATIONS[reduction], group=self._group)
        return values

    def all_reduce_async(self, values: Tensor) -> Pending:
        with self._alive():
            work = dist.all_reduce(values, group=self._group, async_op=True)
        assert work is not None  # None only for ranks outside the group
        return _PendingWork(work, self._timeout_s)

    def all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        received = rows.new_empty((sum(receive_counts), *rows.shape[1:]))
        with self._alive():
            dist.all_to_all_single(
                received,
                rows.contiguous(),
                list(receive_counts),
                list(send_counts),
                group=self._group,
            )
        return received

    def broadcast(self, values: Tensor, source: int = 0) -> Tensor:
        with self._alive():
            dist.broadcast(values, self._ranks[source], group=self._group)
        return values

    def broadcast_object(self, value: T, source: int = 0) -> T:
        holder = [value]
        with self._alive():
            dist.broadcast_object_list(
                holder, self._ranks[source], group=self._group, device=self.device
            )
        return holder[0]

    def all_gather_object(self, value: T) -> list[T]:
        gathered: list[T | None] = [None] * self.world_size
        with self._alive():
            dist.all_gather_object(gathered, value, group=self._group)
        return gathered  # type: ignore[return-value]

    def barrier(self) -> None:
        with self._alive():
            dist.barrier(group=self._group)

    def close(self) -> None:
        assert self._group is None  # a part ends with the whole
        self.barrier()
        dist.destroy_process_group()


def _pad(rows: Tensor, num_rows: int) -> Tensor:
    """`rows` with zero rows added at the end, contiguous."""
    if len(rows) == num_rows:
        return rows.contiguous()
    padded = rows.new_zeros((num_rows, *rows.shape[1:]))
    padded[: len(rows)] = rows
    return padded
