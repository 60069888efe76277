"""Training steps whose memory is hard to tell; each makes models and batches, then gives the step.

Under fake tensors too, so nothing here reads a tensor's contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Built = tuple[Callable[[], object], list[nn.Module | Tensor]]


def mlp(batch: int = 8) -> Built:
    net = nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )
    x = torch.randn(batch, 32)
    labels = torch.zeros(batch, dtype=torch.int64)
    return lambda: F.cross_entropy(net(x), labels).backward(), [net, x, labels]


def conv_net(batch: int = 4, *, channels_last: bool = False) -> Built:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.PReLU(8),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.PReLU(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    x = torch.randn(batch, 3, 12, 12)
    if channels_last:
        for index in (0, 3):  # `Module.to` cannot convert fake parameters
            weight = net[index].weight.detach()
            net[index].weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        x = x.contiguous(memory_format=torch.channels_last)
    return lambda: net(x).square().mean().backward(), [net, x]


def conv_net_channels_last(batch: int = 4) -> Built:
    return conv_net(batch, channels_last=True)


def dropout(batch: int = 8) -> Built:
    net = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(batch, 32)
    return lambda: net(x).sum().backward(), [net, x]


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.inner = nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.inner(self.inner(self.embedding(tokens)).relu())
        return F.linear(h, self.embedding.weight)


def shared_parameter(batch: int = 4) -> Built:
    net, tokens = _Shared(), torch.zeros(batch, 6, dtype=torch.int64)
    return lambda: net(tokens).logsumexp(-1).mean().backward(), [net, tokens]


def in_place_relu(batch: int = 4) -> Built:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
    )
    x = torch.randn(batch, 3, 10, 10)
    return lambda: net(x).sum().backward(), [net, x]


class _Views(nn.Module):
    """Attention by hand: chunks, transposes, an in-place write through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, 2, 8).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        mixed.select(1, 0).add_(1)
        return self.out(mixed)


def attention_views(batch: int = 4) -> Built:
    net, x = _Views(), torch.randn(batch, 5, 16)
    return lambda: net(x).square().sum().backward(), [net, x]


def autocast(batch: int = 8) -> Built:
    net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(batch, 32)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x).float().square().mean()
        loss.backward()

    return step, [net, x]


def checkpointed(batch: int = 8) -> Built:
    first = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 32))
    last = nn.Linear(32, 4)
    x = torch.randn(batch, 32)

    def step() -> None:
        last(checkpoint(first, x, use_reentrant=False)).sum().backward()

    return step, [first, last, x]


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        squared = x * x
        ctx.save_for_backward(x, squared)
        ctx.kept_otherwise = squared + 1
        return squared * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, squared = ctx.saved_tensors
        return grads[0] * squared * 3 + 0 * (ctx.kept_otherwise * x)


def custom_function(batch: int = 8) -> Built:
    net, x = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)), torch.randn(batch, 16)
    return lambda: _Cube.apply(net(x)).mean().backward(), [net, x]


def two_micro_batches(batch: int = 8) -> Built:
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
    halves = torch.randn(2 * batch, 16).chunk(2)

    def step() -> None:
        for x in halves:
            net(x).square().mean().backward()

    return step, [net, *halves]


class _Skips(nn.Module):
    """A UNet's way of holding tensors in Python, and locals that outlive their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            hidden = layer(features[-1])
            features.append(hidden.sigmoid())
        return sum(features[1:], x)


def held_in_python(batch: int = 8) -> Built:
    net, x = _Skips(), torch.randn(batch, 16)
    return lambda: net(x).square().sum().backward(), [net, x]


def lstm(batch: int = 4) -> Built:
    net, x = nn.LSTMCell(8, 12), torch.randn(3, batch, 8)

    def step() -> None:
        state = None
        for part in x:
            state = net(part, state)
        state[0].sum().backward()

    return step, [net, x]


STEPS = [
    mlp,
    conv_net,
    conv_net_channels_last,
    dropout,
    shared_parameter,
    in_place_relu,
    attention_views,
    autocast,
    checkpointed,
    custom_function,
    two_micro_batches,
    held_in_python,
    lstm,
]
