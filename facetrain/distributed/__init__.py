"""Communication between ranks, behind one Protocol whichever engine carries it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from facetrain.distributed.communicator import (
    Communicator,
    PeerLostError,
    Pending,
    even_counts,
    gather_counts,
    on_first_rank,
    raise_together,
)
from facetrain.distributed.single import SingleCommunicator
from facetrain.distributed.traffic import CountedCommunicator
from facetrain.distributed.world import World
from facetrain.errors import FacetrainError

__all__ = [
    "ENGINES",
    "Communicator",
    "CountedCommunicator",
    "PeerLostError",
    "Pending",
    "SingleCommunicator",
    "World",
    "connect",
    "even_counts",
    "gather_counts",
    "on_first_rank",
    "raise_together",
]


def _connect_torch(world: World, device: torch.device, timeout_s: float) -> Communicator:
    from facetrain.distributed.torch_engine import TorchCommunicator

    if world.by_horovodrun:
        raise FacetrainError(
            "--engine torch: horovodrun started this process, and it does not tell where torch's "
            "ranks meet; leave --engine out, or start with torchrun"
        )
    return TorchCommunicator(world, device, timeout_s)


def _connect_horovod(world: World, device: torch.device, timeout_s: float) -> Communicator:
    from facetrain.distributed.horovod_engine import HorovodCommunicator

    return HorovodCommunicator(world, device, timeout_s)


ENGINES: dict[str, Callable[[World, torch.device, float], Communicator]] = {
    "torch": _connect_torch,
    "horovod": _connect_horovod,
}


def connect(world: World, device: torch.device, engine: str, timeout_s: float) -> Communicator:
    """The communicator of this process: no engine is started for a world of one.

    Args:
        engine: name in ENGINES, or "auto": horovod under horovodrun, else torch.
        timeout_s: longest wait in a collective, in seconds.
    """
    if world.world_size == 1:
        return SingleCommunicator(device)
    if engine == "auto":
        engine = "horovod" if world.by_horovodrun else "torch"
    return ENGINES[engine](world, device, timeout_s)
