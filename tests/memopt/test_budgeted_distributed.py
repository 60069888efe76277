"""A budget beside other processes: DDP's hooks, collectives inside the model, custom operators."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import memopt
from memopt.capture import CostTable
from memopt.errors import BudgetTooSmallError, MemoptError

COSTS = CostTable(num_runs=1)
CALLS: list[str] = []


@torch.library.custom_op("memopt_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    CALLS.append("scaled")
    return x * 2


@scaled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(lambda ctx, grad: grad * 2)


class Net(nn.Module):
    """A custom operator in the middle, and a collective where there are other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(*(self._layer() for _ in range(4)))
        self.after = nn.Sequential(*(self._layer() for _ in range(4)))
        self.communicates = False

    def _layer(self) -> nn.Module:
        return nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.memopt_tests.scaled(self.before(x)).exp()
        if self.communicates:
            others = collectives.all_reduce(x.detach().mean(0), "sum", dist.group.WORLD)
            x = x * others
        return self.after(x)


def held(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy under the least budget that there is a plan for."""
    twin = copy.deepcopy(model)
    with pytest.raises(BudgetTooSmallError) as caught:
        memopt.budget(copy.deepcopy(model), 1, costs=COSTS).plan(x)
    memopt.budget(twin, caught.value.least_bytes, costs=COSTS)
    return twin


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_custom_operators_run_once_a_step() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(256, 32)
    twin = held(model, x)
    CALLS.clear()
    for net in (model, twin):
        net(x).sum().backward()
    assert CALLS == ["scaled", "scaled"]
    for one, other in zip(gradients(model), gradients(twin), strict=True):
        assert torch.equal(one, other)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(256, 32, generator=torch.Generator().manual_seed(rank))
    model.communicates = True
    twin = held(model, x)
    found: list[Any] = []
    for net in (model, twin):
        counts: list[int] = []
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, to=counts: to.append(1))
        parallel = DistributedDataParallel(net)
        for _ in range(2):
            parallel.zero_grad()
            parallel(x).square().mean().backward()
        assert len(counts) == 2 * len(list(net.parameters()))
        found.append([*gradients(net), *net.buffers()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    # The same gradients on both ranks, from different rows: DDP's hooks did their part.
    mine = torch.cat([gradient.flatten() for gradient in found[1][:8]])
    theirs = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(theirs, mine)
    assert torch.equal(theirs[0], theirs[1])
    dist.barrier()
    dist.destroy_process_group()


def test_ddp_and_collectives_in_the_model(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]


def test_sharded_parameters_are_refused_in_one_line(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        for policy in (None, "dtr"):
            sharded = copy.deepcopy(model)
            fully_shard(sharded, mesh=mesh)
            memopt.budget(sharded, "1MiB", policy=policy, costs=COSTS)
            with pytest.raises(MemoptError, match=r"0\.weight is sharded") as caught:
                sharded(torch.randn(4, 8))
            assert "\n" not in str(caught.value)
    finally:
        dist.destroy_process_group()
