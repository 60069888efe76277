"""Two processes add their numbers over all ranks; `facetrain doctor` runs it.

python -m facetrain_tools.collective_check torch
"""

from __future__ import annotations

import sys

import torch

from facetrain.command import one_line_errors
from facetrain.distributed import World, connect
from facetrain.distributed.launch import launch


def main(engine: str) -> int:
    world = World.from_environment()
    if not world.launched:
        return launch([sys.executable, "-m", "facetrain_tools.collective_check", engine], 2)
    communicator = connect(world, torch.device("cpu"), engine, timeout_s=30.0)
    total = communicator.all_reduce(torch.tensor([float(world.rank + 1)]))
    communicator.close()
    return 0 if total.item() == world.world_size * (world.world_size + 1) / 2 else 1


if __name__ == "__main__":
    raise SystemExit(one_line_errors(lambda: main(*sys.argv[1:])))
