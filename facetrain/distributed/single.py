"""The communicator of one process: every collective is a copy or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from facetrain.distributed.communicator import Communicator, check_group_size

T = TypeVar("T")


class _Done:
    def wait(self) -> None:
        return None


class SingleCommunicator:
    """A world of one rank. Sends nothing."""

    rank = 0
    world_size = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def all_gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        return rows

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        return rows

    def all_reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        return values

    def all_reduce_async(self, values: Tensor) -> _Done:
        return _Done()

    def all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        return rows.clone()

    def broadcast(self, values: Tensor, source: int = 0) -> Tensor:
        return values

    def broadcast_object(self, value: T, source: int = 0) -> T:
        return value

    def all_gather_object(self, value: T) -> list[T]:
        return [value]

    def split(self, group_size: int) -> tuple[Communicator, Communicator]:
        check_group_size(group_size, self.world_size)
        return self, self

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None
