"""A process's place, as launchers tell it."""

from __future__ import annotations

import pytest

from facetrain.distributed import World
from facetrain.errors import FacetrainError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HOROVODRUN = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


def _world(monkeypatch: pytest.MonkeyPatch, *values: str | None) -> World:
    for name in HOROVODRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(VARIABLES, values, strict=True):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    return World.from_environment()


def test_without_a_launcher_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _world(monkeypatch, None, None, None, None) == World()


def test_torchrun_tells_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world(monkeypatch, "5", "8", "1", "4")
    assert (world.rank, world.world_size) == (5, 8)
    assert (world.local_rank, world.local_world_size) == (1, 4)
    assert world.launched


def test_without_local_variables_all_ranks_are_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _world(monkeypatch, "1", "2", None, None)
    assert (world.local_rank, world.local_world_size) == (1, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("5", "2", "0", "1"), r"environment RANK=5, WORLD_SIZE=2: RANK must be"),
        (("-1", "2", "0", "1"), r"environment RANK=-1, WORLD_SIZE=2"),
        (("1", "2", "2", "2"), r"environment LOCAL_RANK=2, LOCAL_WORLD_SIZE=2: LOCAL_RANK must"),
        (("1", "two", "0", "1"), r"LOCAL_WORLD_SIZE is no number \(.*'two'\)"),
        (("0", "2", "0", ""), r"LOCAL_WORLD_SIZE is no number"),
    ],
)
def test_contradictions_are_named(
    values: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FacetrainError, match=message):
        _world(monkeypatch, *values)


def test_horovodrun_tells_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables count, whatever those of a shell around it say."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name, value in zip(HOROVODRUN, ("5", "8", "1", "4"), strict=True):
        monkeypatch.setenv(name, value)
    world = World.from_environment()
    assert (world.rank, world.world_size) == (5, 8)
    assert (world.local_rank, world.local_world_size) == (1, 4)
    assert world.launched
    assert world.by_horovodrun
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "4")
    with pytest.raises(
        FacetrainError,
        match=r"HOROVOD_LOCAL_RANK=4, HOROVOD_LOCAL_SIZE=4: HOROVOD_LOCAL_RANK must .* horovodrun",
    ):
        World.from_environment()


def test_torchrun_is_not_taken_for_horovodrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-a")
    world = _world(monkeypatch, "5", "8", "1", "4")
    assert not world.by_horovodrun
    assert world.main_address == "node-a"
