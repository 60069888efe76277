"""Horovod's own limits made good: element types, repeatable sums, and what ends a lost run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from facetrain.distributed import Communicator, PeerLostError, World, connect
from facetrain.distributed import horovod_engine as engine_module
from facetrain.distributed.horovod_engine import _check_size, load_horovod
from facetrain.distributed.horovod_meeting import place
from facetrain.errors import FacetrainError
from tests.ranks import needs_horovod, raise_first, run_ranks

CPU = torch.device("cpu")
TYPES = [
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.int16, torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool),
]
COUNTS = [3, 0, 2]


def _rows(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Five rows, whose sums over three ranks every type holds exactly."""
    values = torch.arange(10).reshape(5, 2) + rank
    return values % 2 == 0 if dtype == torch.bool else values.to(dtype)


def _each_type(communicator: Communicator) -> list[dict[str, torch.Tensor]]:
    rank, world_size = communicator.rank, communicator.world_size
    results = []
    for dtype in TYPES:
        rows = _rows(rank, dtype)
        pending = [rows.clone(), rows.clone()]
        for waiting in [communicator.all_reduce_async(values) for values in pending]:
            waiting.wait()
        results.append(
            {
                "gather": communicator.all_gather(rows[: COUNTS[rank]], COUNTS),
                "scatter": communicator.reduce_scatter(rows, COUNTS),
                "sum": communicator.all_reduce(rows.clone()),
                "pending": pending[0],
                "pending too": pending[1],
                "max": communicator.all_reduce(rows.clone(), "max"),
                "exchange": communicator.all_to_all(rows, COUNTS, [COUNTS[rank]] * world_size),
                "copy": communicator.broadcast(rows.clone(), source=2),
                "scalar": communicator.all_reduce(rows[0, 0].clone()),
            }
        )
    return results


@needs_horovod
def test_every_type_is_moved_and_reduced() -> None:
    results = raise_first(run_ranks(_each_type, 3, engine="horovod"))
    for index, dtype in enumerate(TYPES):
        inputs = [_rows(rank, dtype) for rank in range(3)]
        wide = torch.stack([rows.to(torch.float64) for rows in inputs])
        total, largest = wide.sum(0).to(dtype), wide.amax(0).to(dtype)
        for rank in range(3):
            result = results[rank][index]
            first = sum(COUNTS[:rank])
            own = slice(first, first + COUNTS[rank])
            expected = {
                "gather": torch.cat([rows[:n] for rows, n in zip(inputs, COUNTS, strict=True)]),
                "scatter": total[own],
                "sum": total,
                "pending": total,
                "pending too": total,
                "max": largest,
                "exchange": torch.cat([rows[own] for rows in inputs]),
                "copy": inputs[2],
                "scalar": total[0, 0],
            }
            for name, value in expected.items():
                torch.testing.assert_close(
                    result[name], value, rtol=0, atol=0, msg=f"{dtype} {name}"
                )


def _random_rows(rank: int, index: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * index + rank)
    return torch.randn((301, 7), generator=generator).to(dtype)


def _sums(communicator: Communicator) -> list[torch.Tensor]:
    """Several sums under way at a time, started sooner here and later there."""
    rank, found = communicator.rank, []
    for repetition in range(3):
        values = [_random_rows(rank, index, torch.float32) for index in range(6)]
        pending = []
        for value in values:
            time.sleep(0.002 * ((rank + repetition) % 3))
            pending.append(communicator.all_reduce_async(value))
        for waiting in pending:
            waiting.wait()
        found.append(torch.stack(values))
    return found


@needs_horovod
def test_sums_repeat_to_the_bit_and_are_equal_on_all_ranks() -> None:
    results = raise_first(run_ranks(_sums, 3, engine="horovod"))
    first = results[0][0]
    torch.testing.assert_close(
        first,
        torch.stack([sum(_random_rows(r, i, torch.float32) for r in range(3)) for i in range(6)]),
    )
    for rank in range(3):
        for repetition in results[rank]:
            torch.testing.assert_close(repetition, first, rtol=0, atol=0)


def _scatter(communicator: Communicator, dtype: torch.dtype) -> torch.Tensor:
    rows = _random_rows(communicator.rank, 0, dtype)
    return communicator.reduce_scatter(rows, [100, 1, 200])


@needs_horovod
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduce_scatter_adds_in_rank_order_and_rounds_once(dtype: torch.dtype) -> None:
    parts = raise_first(run_ranks(_scatter, 3, dtype, engine="horovod"))
    wide = [_random_rows(rank, 0, dtype).float() for rank in range(3)]
    expected = ((wide[0] + wide[1]) + wide[2]).to(dtype)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=0)


def _until_lost(communicator: Communicator, fate: int | None) -> Any:
    """Rank 1 is killed, stopped, or goes elsewhere; rank 0 reports what ends its waiting."""
    peer = communicator.all_gather_object(os.getpid())[1]
    if communicator.rank == 1:
        if fate is not None:
            threading.Timer(0.2, os.kill, (peer, fate)).start()
        return None
    started = time.monotonic()
    try:
        while True:
            communicator.all_reduce(torch.zeros(5))
    except PeerLostError as error:
        return str(error), time.monotonic() - started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(peer, signal.SIGKILL)  # a stopped process does not end by itself


@needs_horovod
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP, None])
def test_a_lost_rank_ends_the_others_within_the_time_out(fate: int | None) -> None:
    timeout_s = 20.0 if fate == signal.SIGKILL else 2.0
    results = run_ranks(
        _until_lost, 2, fate, engine="horovod", collective_timeout_s=timeout_s, timeout_s=40
    )
    message, seconds = raise_first(results)[0]
    assert message.startswith(
        f"lost contact with another process, or waited more than {timeout_s:g}"
    )
    assert "\n" not in message
    # A killed rank is noticed at once; a silent one after the time-out.
    assert seconds < (5.0 if fate == signal.SIGKILL else timeout_s + 3.0)


@needs_horovod
def test_ranks_that_never_come_are_waited_for_no_longer_than_told(tmp_path: Path) -> None:
    for rank in (0, 1):
        world = World(rank, 2, rank, f"file://{tmp_path}/meet-{rank}", True, 2)
        with pytest.raises(
            PeerLostError, match=f"process {rank} could not meet all 2 processes within 1 s"
        ) as raised:
            connect(world, CPU, "horovod", timeout_s=1.0)
        assert "\n" not in str(raised.value)
    assert "HOROVOD_SIZE" not in os.environ


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ModuleNotFoundError("No module named 'horovod'", name="horovod"), "is not installed"),
        (ImportError("undefined symbol"), r"cannot be imported \(undefined symbol\)"),
    ],
)
def test_horovod_that_is_absent_or_unfit_is_told_with_the_remedy(
    error: ImportError, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(engine_module.importlib, "import_module", fail)
    with pytest.raises(FacetrainError, match=f"Horovod {found}; run `facetrain horovod build`"):
        load_horovod()


def test_a_horovod_built_without_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module.importlib, "import_module", lambda name: object())
    with pytest.raises(FacetrainError, match="was built without torch; run `facetrain horovod"):
        load_horovod()


def test_more_elements_than_horovod_counts_are_refused() -> None:
    _check_size((2**31 - 1,))
    with pytest.raises(FacetrainError, match=r"at most 2,147,483,647 numbers .* 2,147,483,648;"):
        _check_size((2**15, 2**16))


def test_torch_is_refused_under_horovodrun() -> None:
    world = World(0, 2, launched=True, by_horovodrun=True)
    with pytest.raises(FacetrainError, match="--engine torch: horovodrun started this process"):
        connect(world, CPU, "torch", timeout_s=1.0)


@pytest.mark.parametrize(("by_horovodrun", "expected"), [(False, "torch"), (True, "horovod")])
def test_the_engine_follows_the_launcher_where_none_is_asked_for(
    by_horovodrun: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from facetrain import distributed

    started = []
    for name in ("torch", "horovod"):
        monkeypatch.setitem(distributed.ENGINES, name, lambda *_, name=name: started.append(name))
    connect(World(0, 2, launched=True, by_horovodrun=by_horovodrun), CPU, "auto", timeout_s=1.0)
    assert started == [expected]


def test_over_several_machines_ranks_meet_where_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7,eth8")
    world = World(5, 8, 1, launched=True, local_world_size=4)
    variables = place(world, "node-a:7000")
    assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "node-a"
    assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "7000"
    assert variables["HOROVOD_GLOO_IFACE"] == "eth7"
    assert (variables["HOROVOD_RANK"], variables["HOROVOD_SIZE"]) == ("5", "8")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert "HOROVOD_GLOO_IFACE" not in place(world, "node-a:7000")
