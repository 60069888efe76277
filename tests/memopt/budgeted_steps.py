"""A small model, its copy under a budget, and what is compared of their steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.capture import CostTable
from memopt.errors import BudgetTooSmallError
from memopt.live_bytes import LiveBytes

COSTS = CostTable(num_runs=1)


def deep(layers: int = 6, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    chain: list[nn.Module] = []
    for _ in range(layers):
        chain += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh()]
    return nn.Sequential(*chain, nn.Linear(width, 4))


def rows(num_rows: int = 256, width: int = 32) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(1))


def least_bytes(model: nn.Module, *args: Any) -> int:
    model = copy.deepcopy(model)
    with pytest.raises(BudgetTooSmallError) as caught:
        memopt.budget(model, 1, costs=COSTS).plan(*args)
    return caught.value.least_bytes


def held(model: nn.Module, *args: Any, share: float = 1.0) -> tuple[nn.Module, memopt.Budget]:
    """A copy of the model under a budget of `share` times the least."""
    twin = copy.deepcopy(model)
    return twin, memopt.budget(twin, int(least_bytes(model, *args) * share), costs=COSTS)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def peak_bytes(step: Callable[[], object]) -> int:
    with LiveBytes() as live:
        step()
    return live.peak_bytes


def saved_tensors_hooks() -> object:
    """Those in force now; None for none."""
    found: object = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return found
