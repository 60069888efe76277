"""What goes wrong is said, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from memopt.errors import MemoptError
from memopt.execute.online import Online
from tests.memopt.execute.online_steps import (
    backward,
    compare,
    conv_net,
    forward,
    images,
    vectors,
)


def test_exception_in_forward_leaves_nothing() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.fails = conv_net(), False

        def forward(self, x: Tensor) -> Tensor:
            output = self.net(x)
            if self.fails:
                raise RuntimeError("asked to")
            return output

    def step(model: nn.Module, online: Online | None) -> None:
        model.fails = True  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="asked to"):
            forward(model, online, images())
        model.fails = False  # type: ignore[assignment]
        backward(forward(model, online, images()))

    num_modes = len(_get_current_dispatch_mode_stack())
    online, _ = compare(Fails(), share=0.6, step=step, num_steps=3)
    assert online.totals.num_recomputes > 0
    assert len(_get_current_dispatch_mode_stack()) == num_modes


class FailsInBackward(torch.autograd.Function):
    fails = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if FailsInBackward.fails:
            raise RuntimeError("asked to")
        return gradients[0] * 1


def test_exception_in_backward_leaves_nothing() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = conv_net()[:7], conv_net()[7:]

        def forward(self, x: Tensor) -> Tensor:
            return self.last(FailsInBackward.apply(self.first(x)))

    def step(model: nn.Module, online: Online | None) -> None:
        FailsInBackward.fails = True
        with pytest.raises(RuntimeError, match="asked to"):
            backward(forward(model, online, images()))
        FailsInBackward.fails = False
        model.zero_grad()
        backward(forward(model, online, images()))

    num_modes = len(_get_current_dispatch_mode_stack())
    online, _ = compare(Fails(), share=0.6, step=step, num_steps=2)
    assert online.totals.num_recomputes > 0
    assert len(_get_current_dispatch_mode_stack()) == num_modes


def test_a_budget_out_of_reach_is_overrun_and_said() -> None:
    online, peaks = compare(conv_net(), images(), share=0.01)
    assert online.totals.over_budget_bytes == max(peaks) - online.budget_bytes > 0


def test_weights_changed_before_backward_are_an_error() -> None:
    model = conv_net()
    online = Online("dtr", 1)
    output = forward(model, online, images())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with pytest.raises(MemoptError, match=r"changed in place .* clone it first|after backward"):
        backward(output)


def test_weights_whose_memory_is_gone_are_an_error() -> None:
    """As fully_shard does after the forward pass: never read what is not there."""
    model = conv_net()
    output = forward(model, Online("dtr", 1), images())
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
    with pytest.raises(MemoptError, match="was given back between forward and backward"):
        backward(output)


@pytest.mark.parametrize("outside", [True, False])
def test_saved_tensors_written_to_are_an_error(outside: bool) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.linear(x).exp()
            if not outside:
                hidden.add_(1)
            return hidden

    output = forward(Writes(), Online("dtr", 1), vectors(4, 8))
    if outside:
        output.detach().add_(1)
    with pytest.raises(MemoptError, match="changed in place after it was saved"):
        backward(output)


def test_unknown_policy_names_the_known() -> None:
    with pytest.raises(MemoptError, match="known: dtr, dtr_eq, dte, coop"):
        Online("lru", 1)
