"""Where this process stands among the others: the one place that reads a launcher's environment.

`torchrun` and our own launcher (facetrain/distributed/launch.py) set RANK, WORLD_SIZE, LOCAL_RANK
and LOCAL_WORLD_SIZE; without them the process is alone. A launcher that sets the first two only is
taken to start all ranks on one machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from facetrain.errors import FacetrainError

INIT_METHOD_VARIABLE = "FACETRAIN_INIT_METHOD"


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

    @classmethod
    def from_environment(cls) -> World:
        """The place the launcher gave this process.

        Raises:
            FacetrainError: the launcher's variables contradict each other.
        """
        if "WORLD_SIZE" not in os.environ:
            return cls()
        try:
            world_size = int(os.environ["WORLD_SIZE"])
            rank = int(os.environ.get("RANK", "0"))
            local_rank = int(os.environ.get("LOCAL_RANK", rank))
            local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        except ValueError as error:
            raise FacetrainError(
                "environment RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE is no number "
                f"({error}): start with torchrun or with --num-processes"
            ) from error
        for prefix, number, size in (
            ("", rank, world_size),
            ("LOCAL_", local_rank, local_world_size),
        ):
            if not 0 <= number < size:
                raise FacetrainError(
                    f"environment {prefix}RANK={number}, {prefix}WORLD_SIZE={size}: {prefix}RANK "
                    f"must be from 0 to below {prefix}WORLD_SIZE; start with torchrun or with "
                    "--num-processes"
                )
        init_method = os.environ.get(INIT_METHOD_VARIABLE, "env://")
        return cls(
            rank,
            world_size,
            local_rank,
            init_method,
            launched=True,
            local_world_size=local_world_size,
        )
