"""What the default engine says when other ranks are gone, or never came."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from facetrain.distributed import PeerLostError, World, connect
from facetrain.distributed.peers import peers_alive
from facetrain.errors import FacetrainError

CPU = torch.device("cpu")


def test_a_lost_peer_is_told_with_the_cause() -> None:
    cause = "Connection closed by peer\nException raised from wait at ..." + "x" * 500
    with pytest.raises(PeerLostError) as raised, peers_alive(30.0):
        raise RuntimeError(cause)
    message = str(raised.value)
    assert message.startswith("lost contact with another process, or waited more than 30 s")
    assert message.endswith("(Connection closed by peer)")
    with pytest.raises(PeerLostError) as raised, peers_alive(30.0):
        raise RuntimeError("y" * 500)
    assert len(str(raised.value)) < 400


def test_lack_of_memory_is_no_lost_peer() -> None:
    with pytest.raises(torch.OutOfMemoryError), peers_alive(30.0):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")


def test_ranks_that_never_come_are_waited_for_no_longer_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    world = World(0, 2, 0, f"file://{tmp_path}/meet", launched=True, local_world_size=2)
    with pytest.raises(
        PeerLostError, match="process 0 could not meet all 2 processes within 1 s"
    ) as raised:
        connect(world, CPU, "torch", timeout_s=1.0)
    assert "\n" not in str(raised.value)


def test_a_launcher_that_names_no_meeting_place_is_bad_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    world = World(0, 2, 0, launched=True, local_world_size=2)
    with pytest.raises(FacetrainError, match=r"not told where to meet .*MASTER_ADDR.*torchrun"):
        connect(world, CPU, "torch", timeout_s=1.0)
