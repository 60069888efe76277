"""Gradients summed over ranks in the background equal a plain sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from facetrain.distributed import Communicator
from facetrain.distributed.gradients import GradientSum
from tests.ranks import ENGINES, raise_first, run_ranks


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 2))


def _rows(rank: int) -> torch.Tensor:
    return torch.randn((rank + 2, 4), generator=torch.Generator().manual_seed(rank))


def _gradients(communicator: Communicator, bucket_bytes: int) -> list[list[torch.Tensor]]:
    network = _network()
    parameters = list(network.parameters())
    gradient_sum = GradientSum(parameters, communicator, bucket_bytes)
    steps = []
    for _ in range(2):
        network.zero_grad()
        # A first micro-batch stays local until the last one's backward pass.
        network(_rows(communicator.rank)).sum().backward()
        with gradient_sum:
            # Rank 1 uses only the first layer: its other gradients count as zero.
            output = network[0] if communicator.rank == 1 else network
            output(_rows(communicator.rank)).square().sum().backward()
        steps.append([parameter.grad.clone() for parameter in parameters])  # type: ignore[union-attr]
    return steps


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bucket_bytes", [1, 100, 2**20])
@pytest.mark.parametrize("world_size", [2, 3])
def test_gradients_equal_the_sum_over_ranks(
    world_size: int, bucket_bytes: int, engine: str
) -> None:
    results = raise_first(run_ranks(_gradients, world_size, bucket_bytes, engine=engine))
    network = _network()
    for rank in range(world_size):
        network(_rows(rank)).sum().backward()
        output = network[0] if rank == 1 else network
        output(_rows(rank)).square().sum().backward()
    for steps in results:
        for gradients in steps:
            for found, parameter in zip(gradients, network.parameters(), strict=True):
                torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-5)
    for other in results[1:]:
        for found, first in zip(other[0], results[0][0], strict=True):
            assert torch.equal(found, first)
