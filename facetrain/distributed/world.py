"""Where this process stands among the others: the one place that reads a launcher's environment.

`torchrun` and our own launcher (facetrain/distributed/launch.py) set RANK, WORLD_SIZE, LOCAL_RANK
and LOCAL_WORLD_SIZE, `horovodrun` the same as HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK and
HOROVOD_LOCAL_SIZE; without them the process is alone. A launcher that sets the first two only is
taken to start all ranks on one machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from facetrain.errors import FacetrainError

INIT_METHOD_VARIABLE = "FACETRAIN_INIT_METHOD"


class _Launcher(NamedTuple):
    """The names of a launcher's variables."""

    program: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_HOROVODRUN = _Launcher(
    "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
)
_TORCHRUN = _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# horovodrun's first: where it starts the ranks, another's variables are those of a shell around it.
_LAUNCHERS = (_HOROVODRUN, _TORCHRUN)


@dataclass(frozen=True)
class World:
    """A process's rank among `world_size`, and among those of its node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    init_method: str = "env://"
    launched: bool = False
    """A launcher started this process, so it must not start others."""
    local_world_size: int = 1
    """Ranks on this machine."""
    by_horovodrun: bool = False
    """horovodrun started this process: only Horovod's ranks can meet."""
    main_address: str = "127.0.0.1"
    """Host of rank 0, where the launcher tells it."""

    @classmethod
    def from_environment(cls) -> World:
        """The place the launcher gave this process.

        Raises:
            FacetrainError: the launcher's variables contradict each other.
        """
        launcher = next((known for known in _LAUNCHERS if known.size in os.environ), None)
        if launcher is None:
            return cls()
        try:
            world_size = int(os.environ[launcher.size])
            rank = int(os.environ.get(launcher.rank, "0"))
            local_rank = int(os.environ.get(launcher.local_rank, rank))
            local_world_size = int(os.environ.get(launcher.local_size, world_size))
        except ValueError as error:
            raise FacetrainError(
                f"environment {launcher.rank}, {launcher.size}, {launcher.local_rank} or "
                f"{launcher.local_size} is no number ({error}): start with {launcher.program} or "
                "with --num-processes"
            ) from error
        for rank_name, number, size_name, size in (
            (launcher.rank, rank, launcher.size, world_size),
            (launcher.local_rank, local_rank, launcher.local_size, local_world_size),
        ):
            if not 0 <= number < size:
                raise FacetrainError(
                    f"environment {rank_name}={number}, {size_name}={size}: {rank_name} must be "
                    f"from 0 to below {size_name}; start with {launcher.program} or with "
                    "--num-processes"
                )
        return cls(
            rank,
            world_size,
            local_rank,
            os.environ.get(INIT_METHOD_VARIABLE, cls.init_method),
            launched=True,
            local_world_size=local_world_size,
            by_horovodrun=launcher is _HOROVODRUN,
            main_address=os.environ.get("MASTER_ADDR", cls.main_address),
        )
