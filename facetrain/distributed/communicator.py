"""What the toolkit asks of a communication engine.

Every collective works on contiguous tensors on the communicator's device, combines ranks in rank
order, and must be called by all ranks in the same order. Bytes are those a rank sends in a ring
of P ranks; S is the size of the whole (gathered or reduced) tensor.

`counts[r]` is the number of first-dimension rows that belong to rank r; rows may be uneven, and
a rank may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from facetrain.errors import FacetrainError, bad_input_message

T = TypeVar("T")

REDUCTIONS = ("sum", "max")


class PeerLostError(RuntimeError):
    """A collective failed: another rank died, or waited longer than the time-out."""


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> Any:
        """Block until the result is in place."""


class Communicator(Protocol):
    """Collectives among `world_size` processes, of which this is number `rank`."""

    rank: int
    world_size: int
    device: torch.device

    def all_gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows of all ranks in rank order, [sum(counts), ...]. Sends S (P - 1) / P bytes."""

    def reduce_scatter(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Sum over ranks of `rows` [sum(counts), ...]; each rank gets its own counts[rank] rows.

        Sends S (P - 1) / P bytes.
        """

    def all_reduce(self, values: Tensor, reduction: str = "sum") -> Tensor:
        """Reduce `values` over ranks in place ("sum" or "max"). Sends 2 S (P - 1) / P bytes."""

    def all_reduce_async(self, values: Tensor) -> Pending:
        """As `all_reduce` with "sum", without waiting: `values` holds the sum after `wait()`."""

    def all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        """Send `send_counts[r]` consecutive rows to each rank r; rows received, in rank order.

        Sends the bytes of the rows for other ranks.
        """

    def broadcast(self, values: Tensor, source: int = 0) -> Tensor:
        """Copy `values` of rank `source` into every rank's, in place. Sends at most S bytes."""

    def broadcast_object(self, value: T, source: int = 0) -> T:
        """The (picklable) object of rank `source`, on every rank."""

    def all_gather_object(self, value: T) -> list[T]:
        """The (picklable) objects of all ranks, in rank order."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def split(self, group_size: int) -> tuple[Communicator, Communicator]:
        """Cut the ranks into groups of `group_size` consecutive ones; every rank calls it.

        Returns:
            Those of this rank's group, and those at this rank's place in every group.

        Raises:
            FacetrainError: the size does not divide the world size, or the engine cannot do it.
        """

    def close(self) -> None:
        """Leave in good order; every rank must call it."""


def even_counts(num_rows: int, num_parts: int) -> list[int]:
    """Sizes of `num_parts` consecutive parts of `num_rows` rows, the larger ones first.

    Parts differ by one row at most; with fewer rows than parts the last ones are empty.
    """
    quotient, rest = divmod(num_rows, num_parts)
    return [quotient + (part < rest) for part in range(num_parts)]


def check_group_size(group_size: int, world_size: int) -> None:
    """Whether ranks can be cut into groups of that size.

    Raises:
        FacetrainError: they cannot; on every rank, as all are given the same.
    """
    if group_size < 1 or world_size % group_size:
        raise FacetrainError(
            f"groups of {group_size} processes: must divide all {world_size} processes"
        )


def gather_counts(communicator: Communicator, num_rows: int) -> list[int]:
    """How many rows each rank has. One all-gather of 8 bytes per rank."""
    own = torch.tensor([num_rows], dtype=torch.int64, device=communicator.device)
    return communicator.all_gather(own, [1] * communicator.world_size).tolist()


def raise_together(communicator: Communicator, problem: str | None) -> None:
    """Let an error found by some ranks stop all of them, so that none waits for the others.

    Args:
        problem: this rank's error message, or None.

    Raises:
        FacetrainError: on every rank, with the message of the first rank that has one.
    """
    for other in communicator.all_gather_object(problem):
        if other is not None:
            raise FacetrainError(other)


def on_first_rank(communicator: Communicator, function: Callable[[], T]) -> T:
    """The result of `function` run on rank 0 only, on every rank; so is bad input it finds.

    Raises:
        FacetrainError: on every rank, when rank 0's function finds bad input; any other exception
            is raised on rank 0 as it is.
    """
    result: T | None = None
    problem: str | None = None
    if communicator.rank == 0:
        try:
            result = function()
        except Exception as error:
            problem = bad_input_message(error)
            if problem is None:
                raise
    problem, result = communicator.broadcast_object((problem, result))
    if problem is not None:
        raise FacetrainError(problem)
    return result  # type: ignore[return-value]
