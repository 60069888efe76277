"""Whatever a model computes: bits as in plain training, bytes counted to the byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memopt.execute.online import Online
from memopt.policies import POLICIES
from tests.memopt.execute.online_steps import (
    Residual,
    backward,
    compare,
    conv_net,
    forward,
    images,
    vectors,
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [1.2, 0.7, 0.45])
def test_convolutional_net_holds_its_budget_to_the_byte(policy: str, share: float) -> None:
    online, peaks = compare(conv_net(), images(), share=share, policy=policy, num_steps=3)
    assert max(peaks[1:]) <= online.budget_bytes
    assert online.totals.peak_bytes == max(peaks)
    assert (online.totals.num_evictions > 0) == (share < 1)
    assert (online.totals.num_recomputes > 0) == (share < 1)


def test_first_step_counts_its_peak_although_sizes_are_not_known_yet() -> None:
    online, (peak,) = compare(conv_net(), images(), share=0.5, num_steps=1)
    assert online.totals.peak_bytes == peak
    assert peak <= 1.1 * online.budget_bytes


def test_dropout_keeps_masks_and_generator() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(16, 0.3) for _ in range(4)], nn.Linear(16, 16), nn.RReLU())
    online, _ = compare(model, vectors(8, 6, 16))
    assert online.totals.num_recomputes > 0


def test_operators_that_write_in_place() -> None:
    online, _ = compare(conv_net(6, inplace=True), images(), share=0.5)
    assert online.totals.num_recomputes > 0


class Attention(nn.Module):
    """Chunks, transposes, a write through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, 2, 8).transpose(1, 2) for t in (q, k, v))
        mixed = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2)
        mixed = mixed.reshape(batch, length, width)
        mixed.select(1, 0).add_(1)
        return x + self.out(mixed)


def test_views_share_their_storage() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Attention() for _ in range(3)])
    online, _ = compare(model, vectors(8, 12, 16), share=0.6)
    assert online.totals.num_recomputes > 0


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for _ in range(4):
            hidden = self.inner(hidden).tanh()
        return F.linear(hidden, self.embedding.weight).logsumexp(-1)


def test_shared_parameters() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(96).view(8, 12) % 20
    online, _ = compare(Shared(), tokens, share=0.6)
    assert online.totals.num_recomputes > 0


def test_autocast_recomputes_in_the_type_of_the_forward_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(16, 0.0) for _ in range(4)])
    x = vectors(16, 6, 16)

    def step(model: nn.Module, online: Online | None) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            output = forward(model, online, x)
        backward(output)

    online, _ = compare(model, step=step)
    assert online.totals.num_recomputes > 0


class Positive(nn.Module):
    """Its result's size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        hidden = hidden[hidden.sum(1) > 0].exp()
        return self.last((hidden * 0.1).sin().cos()).sum()


def test_shapes_that_depend_on_values() -> None:
    torch.manual_seed(0)
    compare(Positive(), vectors(32, 16), share=0.6)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(16, 0.1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if layer is self.layers[0] or random.random() < 0.6:
                x = layer(x)
        return x * random.random()


def test_branches_by_chance() -> None:
    torch.manual_seed(0)
    online, _ = compare(Branches(), vectors(16, 6, 16), num_steps=6)
    assert online.totals.num_recomputes > 0


def test_a_chain_of_2000_layers_at_a_tight_budget() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.999))

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.scale
            for _ in range(2000):
                x = x.sin()
            return x

    model, x = Chain(), vectors(64)
    backward(model(x))
    expected = model.scale.grad
    model.scale.grad = None
    online = Online("dtr_eq", 60 * x.nbytes)  # plain: 2,000 of them
    backward(forward(model, online, x))
    assert torch.equal(model.scale.grad, expected)
    assert online.totals.over_budget_bytes == 0
    assert online.totals.num_recomputes > 1900


class ReadsThenWrites(nn.Module):
    """A buffer that one operator reads before another writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("shift", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.first(x) + self.shift).tanh()
        for _ in range(6):
            hidden = self.last(hidden).tanh()
        self.shift.mul_(0.5)
        for _ in range(6):
            hidden = self.last(hidden + self.shift).tanh()
        return hidden


def test_buffers_that_the_forward_pass_writes_to() -> None:
    torch.manual_seed(0)
    online, _ = compare(ReadsThenWrites(), vectors(32, 64), share=0.7)
    assert online.totals.num_recomputes > 0


def test_what_cannot_be_made_again_stays_until_what_needs_it_is_gone() -> None:
    """A dropout's result is read by a branch whose saved tensors outlive its own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            mixed = F.dropout(self.layers[0](x), 0.2)
            left, right = self.layers[1](mixed), mixed.exp()
            for _ in range(4):
                right = self.layers[2](right).sigmoid()
            return self.layers[3](left * right).tanh()

    torch.manual_seed(0)
    online, _ = compare(Net(), vectors(64, 32), share=0.6)
    assert online.totals.num_recomputes > 0


class FilledByNumpy(torch.autograd.Function):
    """Writes where no dispatcher looks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        np.sin(x.detach().numpy(), out=result.numpy())
        cosine = torch.empty_like(x)
        np.cos(x.detach().numpy(), out=cosine.numpy())
        ctx.save_for_backward(cosine)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * ctx.saved_tensors[0]


def test_memory_filled_out_of_sight_is_never_made_again() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = FilledByNumpy.apply(layer(x).tanh())
            return x

    torch.manual_seed(0)
    compare(Net(), vectors(32, 32), share=0.3)


def test_conjugates_and_checkpoints_inside() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(lambda y: self.first(y).tanh().exp(), x, use_reentrant=False)
            spectrum = torch.fft.fft(hidden)
            power = (spectrum * spectrum.conj() * spectrum.conj()).real
            return self.last(power.prod(1, keepdim=True) + power).sigmoid()

    torch.manual_seed(0)
    compare(Net(), vectors(8, 32), share=0.5)
