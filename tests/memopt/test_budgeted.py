"""Training under a budget equals plain training to the bit; the cases that break such systems."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import memopt
from memopt.capture import CostTable
from memopt.errors import BudgetTooSmallError
from memopt.plan import make_plan, trace, with_costs

COSTS = CostTable(num_runs=1)
Loss = Callable[[Any], Tensor]


class Block(nn.Module):
    """A residual block in the way of IResNet's."""

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.activation = activation
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.activation(self.bn2(self.conv1(self.bn1(x)))))


def conv_net(
    activation: Callable[[], nn.Module] = lambda: nn.PReLU(8), blocks: int = 4
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Block(8, activation()) for _ in range(blocks)),
        nn.Flatten(),
        nn.Linear(8 * 144, 6),
    )


class Attention(nn.Module):
    """A transformer layer with dropout, views, split and a softmax."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.qkv = nn.Linear(24, 72)
        self.out = nn.Linear(24, 24)
        self.mlp = nn.Sequential(
            nn.LayerNorm(24), nn.Linear(24, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, 24)
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2) / 5).softmax(-1)
        x = x + self.out(F.dropout(weights, self.dropout, self.training) @ v)
        return x + self.mlp(x)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.head = nn.Linear(16, 16)
        self.head.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(self.linear(x)) + x.sigmoid()
        return self.head(x)


class InPlace(nn.Module):
    """In-place on a fresh output, on a view of one, and on a slice of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            y = self.a(x)
            y.mul_(0.5).add_(1)
            y[:, 3:7].mul_(2)
            y = y.view(-1, 4, 8).transpose(1, 2).reshape(-1, 32).exp()
            x = self.b(y.sin()).relu_()
        return x


class Square(torch.autograd.Function):
    """Keeps what it saves, and something on the side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.side = x * 2
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * ctx.side + x * 0


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.b(Square.apply(torch.tanh(self.a(x).exp())).sigmoid())  # type: ignore[no-untyped-call]
        return x


class Inner(nn.Module):
    """torch.utils.checkpoint inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv_net(blocks=1)[:2], conv_net(blocks=3)[1:]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))


class Outputs(nn.Module):
    """Several outputs, one of them without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, *, scale: float) -> dict[str, Any]:
        hidden = self.a(x).tanh()
        return {"y": self.b(hidden.exp()) * scale, "parts": [hidden.sum(), x.argmax(1)]}


def images() -> Tensor:
    return torch.randn(4, 3, 12, 12)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "prelu": (conv_net, images),
    "relu in place": (lambda: conv_net(lambda: nn.ReLU(inplace=True)), images),
    "rrelu": (lambda: conv_net(nn.RReLU), images),
    "silu": (lambda: conv_net(nn.SiLU), images),
    "channels last": (
        conv_net,
        lambda: images().contiguous(memory_format=torch.channels_last),
    ),
    "attention": (
        lambda: nn.Sequential(*(Attention(0.0) for _ in range(3))),
        lambda: torch.randn(16, 7, 24),
    ),
    "dropout": (
        lambda: nn.Sequential(*(Attention(0.3) for _ in range(3))),
        lambda: torch.randn(16, 7, 24),
    ),
    "shared": (Shared, lambda: torch.randn(64, 16)),
    "in place": (InPlace, lambda: torch.randn(64, 16)),
    "custom function": (Custom, lambda: torch.randn(64, 16)),
    "checkpoint inside": (Inner, images),
}


def train(
    model: nn.Module, batches: list[Tensor], autocast: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Gradients of each step, then parameters and buffers; and the generator's state after."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(3)
    found: list[Tensor] = []
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            output = model(batch)
        output.float().square().mean().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    found += [tensor.clone() for tensor in model.state_dict().values()]
    return found, torch.get_rng_state()


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def tightest(model: nn.Module, batch: Tensor, autocast: bool = False) -> tuple[int, int]:
    """The least budget that is found, and the plain peak."""
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        recording = with_costs(trace(model, (batch,)), COSTS)
    with pytest.raises(BudgetTooSmallError) as caught:
        make_plan(recording, 1, costs=COSTS)
    return caught.value.least_bytes, make_plan(recording, 1 << 60, costs=COSTS).plain_peak_bytes


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_training_under_a_budget_is_plain_training(name: str, autocast: bool) -> None:
    make, batch = NETS[name]
    torch.manual_seed(0)
    plain = make()
    batches = [batch() for _ in range(2)]
    least, most = tightest(plain, batches[0], autocast)
    assert least < most
    held = copy.deepcopy(plain)
    budget = memopt.budget(held, least, costs=COSTS)
    expected, expected_state = train(plain, batches, autocast)
    found, state = train(held, batches, autocast)
    assert_same(expected, found)
    assert torch.equal(expected_state, state)
    (plan,) = budget.plans.values()
    assert budget.num_strays == 0
    assert plan.peak_bytes <= least
    assert plan.schedule.drops
