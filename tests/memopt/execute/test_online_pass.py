"""Training under online policies: bits as in plain training, bytes counted to the byte."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from memopt.errors import MemoptError
from memopt.execute.online import Online
from memopt.live_bytes import LiveBytes
from memopt.policies import POLICIES


def forward(model: nn.Module, online: Online | None, *inputs: Any) -> Any:
    """A forward pass of the model, under a policy if there is one."""
    if online is None:
        return model(*inputs)
    online_pass = online.new_pass()
    with online_pass.hooks():
        outputs = model(*inputs)
    online_pass.close(outputs)
    return outputs


def backward(output: Tensor, **kwargs: Any) -> None:
    output.backward(torch.full_like(output.detach(), 0.5), **kwargs)


def state_of(model: nn.Module) -> list[Tensor]:
    """Copies of gradients and buffers, and the generator's state."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [t.detach().clone() for t in [*found, *model.buffers()]] + [torch.get_rng_state()]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) or torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


def compare(
    model: nn.Module,
    *inputs: Any,
    share: float = 0.5,
    policy: str = "dtr",
    num_steps: int = 2,
    step: Callable[[nn.Module, Online | None], None] | None = None,
) -> tuple[Online, list[int]]:
    """Trains two copies, one under a policy and one plain; the former's totals and its peaks."""

    def usual(model: nn.Module, online: Online | None) -> None:
        backward(forward(model, online, *inputs))

    def peak_of(model: nn.Module, online: Online | None, seed: int) -> int:
        for parameter in model.parameters():
            parameter.grad = None
        torch.manual_seed(seed)
        random.seed(seed)
        with LiveBytes() as live:
            (step or usual)(model, online)
        return live.peak_bytes

    plain_model, model = copy.deepcopy(model), copy.deepcopy(model)
    online, peaks = None, []
    for seed in range(num_steps):
        plain_bytes = peak_of(plain_model, None, seed)
        expected = state_of(plain_model)
        online = online or Online(policy, int(share * plain_bytes))
        peaks.append(peak_of(model, online, seed))
        assert same_bits(state_of(model), expected), f"step {seed}"
    assert online is not None
    return online, peaks


def conv_net(num_blocks: int = 4, *, inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for index in range(num_blocks):
        layers += [
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True) if inplace and index % 2 else nn.PReLU(8),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


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


class Residual(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.hidden(self.norm(x)))
        return x + F.dropout(self.out(hidden), self.dropout)


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


def test_a_graph_kept_runs_backward_twice() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        output = forward(model, online, images())
        backward(output, retain_graph=True)
        backward(output)

    online, _ = compare(conv_net(), step=step)
    assert online.totals.num_recomputes > 0


def test_gradients_of_some_inputs_only() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        x = images().requires_grad_()
        output = forward(model, online, x)
        weight = next(model.parameters())
        (found,) = torch.autograd.grad(output.sum(), [x], retain_graph=True)
        (weight.grad,) = torch.autograd.grad(output.sum() + found.sum(), [weight])

    compare(conv_net(), step=step)


def test_gradients_of_gradients() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        x = images().requires_grad_()
        output = forward(model, online, x)
        (found,) = torch.autograd.grad(output.sum(), [x], create_graph=True)
        (output.mean() + found.square().sum()).backward()

    online, _ = compare(conv_net(), step=step)
    assert online.totals.num_recomputes > 0


def test_several_forward_passes_wait_for_one_backward() -> None:
    """They share one budget, and one may be evicted from for the other."""

    batches = [images(), images() + 1]

    def step(model: nn.Module, online: Online | None) -> None:
        first, second = [forward(model, online, batch) for batch in batches]
        backward(first + second)

    online, peaks = compare(conv_net(), share=0.5, step=step, num_steps=3)
    outside = 2 * 4 * 4 * 5  # the sum, and its gradient
    assert max(peaks[1:]) <= online.budget_bytes + outside
    assert online.totals.num_recomputes > 0


def test_a_pass_reads_what_another_made() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(16, 0.0) for _ in range(4)])
    x = vectors(8, 6, 16)

    def step(model: nn.Module, online: Online | None) -> None:
        backward(forward(model, online, forward(model, online, x)))

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


def test_the_program_may_keep_what_it_likes() -> None:
    model = conv_net()
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda _, __, output: seen.append((output, output.clone())))
    online = Online("dtr", 1)
    backward(forward(model, online, images()))
    assert all(torch.equal(output, then) for output, then in seen)


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


def test_a_pass_goes_with_its_graph() -> None:
    """Without backward too, and whatever the graph holds."""
    online = Online("dtr", 1)
    model = conv_net()
    gc.collect()
    gc.disable()
    try:
        online_pass = online.new_pass()
        with online_pass.hooks():
            output = model(images())
        online_pass.close(output)
        gone = weakref.ref(online_pass)
        del online_pass
        assert gone() is not None
        del output
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_grows_over_steps() -> None:
    model, online = conv_net(), Online("dte", 100_000)
    sizes = []
    for _ in range(4):
        backward(forward(model, online, images()))
        gc.collect()
        sizes.append(len(gc.get_objects()))
        for parameter in model.parameters():
            parameter.grad = None
    assert abs(sizes[-1] - sizes[-2]) < 20


def test_unknown_policy_names_the_known() -> None:
    with pytest.raises(MemoptError, match="known: dtr, dtr_eq, dte, coop"):
        Online("lru", 1)
