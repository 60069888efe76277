"""Steps of training under an online policy, and the same without one."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memopt.execute.online import Online
from memopt.live_bytes import LiveBytes


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
