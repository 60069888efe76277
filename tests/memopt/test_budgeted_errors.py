"""What cannot be done under a budget is one clear error, and the next step is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.errors import MemoptError
from tests.memopt.budgeted_steps import (
    COSTS,
    assert_same,
    deep,
    gradients,
    held,
    rows,
    saved_tensors_hooks,
)


def test_a_number_that_changes_unseen_is_an_error_and_no_wrong_gradient() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.scale = deep(), 1.0

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x) * self.scale
            return x

    model = Scaled()
    twin, _ = held(model, rows())
    twin(rows()).sum().backward()
    twin.zero_grad()
    twin.scale = 1.5  # type: ignore[assignment]
    with pytest.raises(MemoptError, match="a recomputed tensor differs from the one that was"):
        twin(rows()).sum().backward()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_an_exception_the_next_step_is_right(where: str) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if state["fail"] == "forward":
                raise ZeroDivisionError
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            if state["fail"] == "backward":
                raise ZeroDivisionError
            return grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = deep(3), nn.Sequential(nn.Linear(4, 32), deep(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Failing.apply(self.first(x)))  # type: ignore[no-untyped-call]

    state = {"fail": ""}
    model, x = Net(), rows()
    twin, _ = held(model, x)
    for net in (model, twin):
        state["fail"] = ""
        net(x).sum().backward()
        state["fail"] = where
        with pytest.raises(ZeroDivisionError):
            net(x).sum().backward()
        state["fail"] = ""
        net.zero_grad()
        net(x).sum().backward()
    assert_same(gradients(model), gradients(twin))
    assert saved_tensors_hooks() is None


def test_changes_in_place_that_backward_would_miss_are_errors() -> None:
    twin, _ = held(deep(), rows())
    x = rows()
    output = twin(x).sum()
    x.mul_(2)
    with pytest.raises(MemoptError, match="in place"):
        output.backward()
    output = twin(rows()).sum()
    with torch.no_grad():
        twin[6].weight.mul_(2)
    with pytest.raises(MemoptError, match="in place"):
        output.backward()


def test_a_model_that_cannot_be_traced_is_one_clear_error() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[x[:, 0] > 0])

    model = Counting()
    memopt.budget(model, "1MiB", costs=COSTS)
    with pytest.raises(MemoptError, match="depends on values") as caught:
        model(rows())
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        model(rows())


@pytest.mark.parametrize(
    ("size", "choice", "message"),
    [
        (0, {}, "memory budget 0 must be at least one byte"),
        (-5, {}, "memory budget -5 must be at least one byte"),
        ("0", {}, "at least one byte"),
        ("1GiB", {"policy": "lru"}, "lru"),
        ("1GiB", {"planner": "best"}, "planner 'best' is unknown"),
    ],
)
def test_bad_arguments_are_refused_before_the_model_is_touched(
    size: str | int, choice: dict[str, str], message: str
) -> None:
    model = deep()
    with pytest.raises(MemoptError, match=message):
        memopt.budget(model, size, **choice)  # type: ignore[arg-type]
    assert not model._forward_pre_hooks
