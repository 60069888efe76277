"""Every collective against its definition, on 1, 2 and 3 real ranks, shares uneven and empty."""

from __future__ import annotations

import pytest
import torch

from facetrain.distributed import (
    Communicator,
    SingleCommunicator,
    even_counts,
    gather_counts,
    on_first_rank,
    raise_together,
)
from facetrain.errors import FacetrainError
from facetrain.memory import MemoptError
from facetrain_datasets.errors import DatasetError
from tests.ranks import ENGINES, needs_horovod, raise_first, run_ranks


def _values(rank: int, rows: int) -> torch.Tensor:
    return torch.arange(rows * 2, dtype=torch.float32).reshape(rows, 2) + 100 * rank


def _collectives(communicator: Communicator, counts: list[int]) -> dict[str, torch.Tensor]:
    rank, world_size = communicator.rank, communicator.world_size
    whole = _values(rank, sum(counts))
    pending_values = torch.full((3,), float(rank + 1))
    communicator.all_reduce_async(pending_values).wait()
    sends = [(rank + peer) % 3 for peer in range(world_size)]
    return {
        "all_gather": communicator.all_gather(_values(rank, counts[rank]), counts),
        "reduce_scatter": communicator.reduce_scatter(whole, counts),
        "sum": communicator.all_reduce(torch.tensor([float(rank), 1.0])),
        "max": communicator.all_reduce(torch.tensor([float(rank), -1.0]), "max"),
        "async": pending_values,
        "all_to_all": communicator.all_to_all(_values(rank, sum(sends)), sends, sends),
        "broadcast": communicator.broadcast(torch.tensor([rank]), source=world_size - 1),
        "counts": torch.tensor(gather_counts(communicator, counts[rank])),
        "object": communicator.broadcast_object({"from": rank}, source=0),
        "objects": communicator.all_gather_object(rank * rank),
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("counts", [[3], [2, 2], [4, 1], [0, 3], [2, 0, 3], [0, 0, 0]])
def test_collectives_equal_their_definition_for_uneven_and_empty_shares(
    counts: list[int], engine: str
) -> None:
    world_size = len(counts)
    results = raise_first(run_ranks(_collectives, world_size, counts, engine=engine))
    gathered = torch.cat([_values(rank, count) for rank, count in enumerate(counts)])
    summed = sum(_values(rank, sum(counts)) for rank in range(world_size))
    assert isinstance(summed, torch.Tensor)
    for rank, result in enumerate(results):
        torch.testing.assert_close(result["all_gather"], gathered, rtol=0, atol=0)
        own = summed.split(counts)[rank]
        torch.testing.assert_close(result["reduce_scatter"], own, rtol=0, atol=0)
        assert result["sum"].tolist() == [sum(range(world_size)), world_size]
        assert result["max"].tolist() == [world_size - 1, -1]
        assert result["async"].tolist() == [sum(range(1, world_size + 1))] * 3
        received = torch.cat(
            [
                _values(peer, sum((peer + other) % 3 for other in range(world_size))).split(
                    [(peer + other) % 3 for other in range(world_size)]
                )[rank]
                for peer in range(world_size)
            ]
        )
        torch.testing.assert_close(result["all_to_all"], received, rtol=0, atol=0)
        assert result["broadcast"].tolist() == [world_size - 1]
        assert result["counts"].tolist() == counts
        assert result["object"] == {"from": 0}
        assert result["objects"] == [peer * peer for peer in range(world_size)]


def _fails_on_last_rank(communicator: Communicator) -> None:
    last = communicator.rank == communicator.world_size - 1
    raise_together(communicator, "image x.jpg: cut" if last else None)


@pytest.mark.parametrize("engine", ENGINES)
def test_raise_together_raises_the_same_error_on_every_rank(engine: str) -> None:
    for result in run_ranks(_fails_on_last_rank, 3, engine=engine):
        assert isinstance(result, FacetrainError)
        assert result.args[0] == "image x.jpg: cut"


BAD_INPUT = {
    "facetrain": (FacetrainError("--lr -1"), "--lr -1"),
    "dataset": (DatasetError("a.jpg: grey"), "a.jpg: grey"),
    "memory": (MemoptError("1 MiB is too little"), "1 MiB is too little"),
    "file": (
        PermissionError(13, "Permission denied", "/x/y"),
        "/x/y: Permission denied; change its permissions or, where it is to be written, choose "
        "another folder with --out",
    ),
}


def _finds_bad_input(communicator: Communicator, kind: str) -> None:
    def find() -> None:
        raise BAD_INPUT[kind][0]

    on_first_rank(communicator, find)


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_found_by_the_first_rank_is_raised_on_every_rank(kind: str) -> None:
    for result in run_ranks(_finds_bad_input, 2, kind):
        assert isinstance(result, FacetrainError)
        assert result.args[0] == BAD_INPUT[kind][1]


@pytest.mark.parametrize("defect", [ValueError("our mistake"), KeyError("k"), OSError("no file")])
def test_a_defect_of_the_first_rank_is_raised_as_it_is(defect: Exception) -> None:
    def fail() -> None:
        raise defect

    with pytest.raises(type(defect)) as raised:
        on_first_rank(SingleCommunicator(), fail)
    assert raised.value is defect


@pytest.mark.parametrize(
    ("rows", "parts", "expected"),
    [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (2, 3, [1, 1, 0]), (0, 2, [0, 0])],
)
def test_even_counts_differ_by_one_at_most(rows: int, parts: int, expected: list[int]) -> None:
    assert even_counts(rows, parts) == expected


def _dies(communicator: Communicator) -> str:
    if communicator.rank == 1:
        raise RuntimeError("rank 1 breaks down")
    try:
        communicator.barrier()
    except Exception as error:
        return type(error).__name__
    return "no error"


@pytest.mark.parametrize("engine", ENGINES)
def test_other_ranks_are_told_when_one_dies(engine: str) -> None:
    results = run_ranks(_dies, 2, engine=engine)
    assert results[0] == "PeerLostError"


def _split(communicator: Communicator, group_size: int) -> list[list[int]]:
    """Who is in either part, by every kind of collective that names or orders ranks."""
    found = []
    for part in communicator.split(group_size):
        own = torch.tensor([communicator.rank])
        ranks = part.all_gather(own, [1] * part.world_size).tolist()
        assert ranks == part.all_gather_object(communicator.rank)
        assert ranks[part.rank] == communicator.rank
        assert part.all_reduce(own.clone()).item() == sum(ranks)
        assert part.broadcast(own.clone(), source=part.world_size - 1).item() == ranks[-1]
        assert part.broadcast_object(communicator.rank) == ranks[0]
        scattered = part.reduce_scatter(torch.arange(part.world_size), [1] * part.world_size)
        assert scattered.tolist() == [part.rank * part.world_size]
        part.barrier()
        found.append(ranks)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("group_size", [1, 2])
def test_groups_of_one_and_of_all(group_size: int, engine: str) -> None:
    for rank, parts in enumerate(raise_first(run_ranks(_split, 2, group_size, engine=engine))):
        assert parts == ([[rank], [0, 1]] if group_size == 1 else [[0, 1], [rank]])
    assert _split(SingleCommunicator(), 1) == [[0], [0]]


@pytest.mark.slow
def test_groups_are_of_consecutive_ranks() -> None:
    found = raise_first(run_ranks(_split, 4, 2))
    assert [parts[0] for parts in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [parts[1] for parts in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def _split_wrongly(communicator: Communicator) -> str:
    with pytest.raises(FacetrainError) as raised:
        communicator.split(2)
    return str(raised.value)


def test_groups_that_leave_ranks_over_are_refused() -> None:
    for message in raise_first(run_ranks(_split_wrongly, 3)):
        assert message == "groups of 2 processes: must divide all 3 processes"


@needs_horovod
@pytest.mark.slow
def test_horovod_refuses_groups_between_one_process_and_all() -> None:
    for message in raise_first(run_ranks(_split_wrongly, 4, engine="horovod")):
        assert message.startswith("groups of 2 of 4 processes (--head-ranks) need --engine torch")
