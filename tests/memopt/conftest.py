"""Small chains of segments for the tests of memopt, independent of the product's backbones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn


class Link(NamedTuple):
    """A segment, spelled out again so that nothing of the product is assumed."""

    name: str
    forward: Callable[[Tensor], Tensor]
    modules: tuple[nn.Module, ...]


class Residual(nn.Module):
    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.PReLU(channels),
            nn.Dropout(dropout),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def links(modules: nn.Sequential) -> list[Link]:
    return [Link(name, module, (module,)) for name, module in modules.named_children()]


def convolutional_net(
    num_blocks: int = 3, channels: int = 8, dropout: float = 0.2
) -> nn.Sequential:
    """Stem, residual blocks with BatchNorm and Dropout, head; for images [B, 3, 16, 16]."""
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("stem", nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()))
    for index in range(num_blocks):
        net.add_module(f"block{index}", Residual(channels, dropout))
    net.add_module(
        "head", nn.Sequential(nn.Flatten(), nn.Linear(channels * 256, 4), nn.BatchNorm1d(4))
    )
    return net


class Toolbox(NamedTuple):
    link: type[Link]
    links: Callable[[nn.Sequential], list[Link]]
    net: Callable[..., nn.Sequential]


@pytest.fixture
def chains() -> Toolbox:
    return Toolbox(Link, links, convolutional_net)
