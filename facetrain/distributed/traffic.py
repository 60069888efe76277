"""Counts the collectives of a communicator and the bytes that this rank sends in them.

    counted = CountedCommunicator(communicator)
    head(embeddings, labels)             # a head made with `counted`
    print(counted.calls, counted.sent_bytes)

Bytes follow from the shapes by the formulas in communicator.py (a ring of P ranks); padding of
uneven shares is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from facetrain.distributed.communicator import Communicator, Pending

T = TypeVar("T")


class CountedCommunicator:
    """The communicator inside, with a count of tensor collectives.

    Attributes:
        calls: number of calls by name of the collective.
        sent_bytes: bytes this rank sent, by name of the collective.
    """

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner
        self.rank = inner.rank
        self.world_size = inner.world_size
        self.device = inner.device
        self.calls: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()

    def reset(self) -> None:
        """Start counting anew."""
        self.calls.clear()
        self.sent_bytes.clear()

    def _count(self, name: str, whole_bytes: float, times: int = 1) -> None:
        self.calls[name] += 1
        share = (self.world_size - 1) / self.world_size
        self.sent_bytes[name] += round(times * whole_bytes * share)

    def all_gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        gathered = self._inner.all_gather(rows, counts)
        self._count("all_gather", gathered.nbytes)
        return gathered

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        self._count("reduce_scatter", rows.nbytes)
        return self._inner.reduce_scatter(rows, counts)

    def all_reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        self._count("all_reduce", values.nbytes, times=2)
        return self._inner.all_reduce(values, reduction)

    def all_reduce_async(self, values: Tensor) -> Pending:
        self._count("all_reduce", values.nbytes, times=2)
        return self._inner.all_reduce_async(values)

    def all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        row_bytes = rows.nbytes / max(1, len(rows))
        self.calls["all_to_all"] += 1
        self.sent_bytes["all_to_all"] += round(
            row_bytes * (sum(send_counts) - send_counts[self.rank])
        )
        return self._inner.all_to_all(rows, send_counts, receive_counts)

    def broadcast(self, values: Tensor, source: int = 0) -> Tensor:
        self.calls["broadcast"] += 1
        self.sent_bytes["broadcast"] += values.nbytes if self.world_size > 1 else 0
        return self._inner.broadcast(values, source)

    def broadcast_object(self, value: T, source: int = 0) -> T:
        return self._inner.broadcast_object(value, source)

    def all_gather_object(self, value: T) -> list[T]:
        return self._inner.all_gather_object(value)

    def split(self, group_size: int) -> tuple[Communicator, Communicator]:
        """Parts that count into this one's counters; one of a single rank counts nothing."""
        inside, across = (self._part(part) for part in self._inner.split(group_size))
        return inside, across

    def _part(self, part: Communicator) -> Communicator:
        if part.world_size == 1:
            return part
        counted = CountedCommunicator(part)
        counted.calls, counted.sent_bytes = self.calls, self.sent_bytes
        return counted

    def barrier(self) -> None:
        self._inner.barrier()

    def close(self) -> None:
        self._inner.close()
