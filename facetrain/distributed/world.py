"""Where this process stands among the others: the one place that reads a launcher's environment.

`torchrun` and our own launcher (facetrain/distributed/launch.py) set RANK, WORLD_SIZE and
LOCAL_RANK; without them the process is alone.
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
        except ValueError as error:
            raise FacetrainError(
                f"environment RANK, WORLD_SIZE or LOCAL_RANK is no number ({error}): "
                "start with torchrun or with --num-processes"
            ) from error
        if not 0 <= rank < world_size:
            raise FacetrainError(
                f"environment RANK={rank}, WORLD_SIZE={world_size}: "
                "RANK must be below WORLD_SIZE; start with torchrun or with --num-processes"
            )
        init_method = os.environ.get(INIT_METHOD_VARIABLE, "env://")
        return cls(rank, world_size, local_rank, init_method, launched=True)
