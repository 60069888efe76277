"""The networks of the memory benchmarks: chains of links, written out here or from facetrain.

    network = NETWORKS["resnet50"]
    model, images = network.build(), network.make_batch(8)

A link takes what the one before it returned, a tensor or a tuple of tensors, so that a chain can be
cut into segments wherever two links meet; `links(model)` lists them.

Shapes: B images or sequences, C channels, T tokens, W width of a transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from facetrain.backbones import Backbone, build_backbone

Link = Callable[..., Any]
NUM_CLASSES = 1000
VOCABULARY = 8192


class Chain(nn.Module):
    """Links run one after another."""

    def __init__(self, links: Sequence[nn.Module]) -> None:
        super().__init__()
        self.links = nn.ModuleList(links)

    def forward(self, x: Tensor) -> Tensor:
        return run_links(list(self.links), x)


def run_links(chain: Sequence[Link], x: Any) -> Any:
    """What the last link returns, the first given `x`."""
    for link in chain:
        x = link(*x) if isinstance(x, tuple) else link(x)
    return x


def links(model: nn.Module) -> list[Link]:
    """The links of a model of this file, or of a facetrain backbone."""
    if isinstance(model, Backbone):
        return [segment.forward for segment in model.segments()]
    assert isinstance(model, Chain)
    return list(model.links)


def convolution(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride, size // 2, bias=False)


def stem(width: int) -> nn.Module:
    """224 x 224 to 56 x 56, as ResNet and DenseNet begin."""
    return nn.Sequential(
        convolution(3, width, 7, 2),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )


def classifier_head(channels: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


class Bottleneck(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition", 2016; stride in the 3 x 3."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = 4 * channels
        self.layers = nn.Sequential(
            convolution(in_channels, channels, 1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            convolution(channels, channels, 3, stride),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            convolution(channels, out_channels, 1),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                convolution(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(x)
        out += self.shortcut(x)
        return functional.relu(out, inplace=True)


def resnet50() -> Chain:
    chain, in_channels = [stem(64)], 64
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        channels = 64 * 2**stage
        for block in range(num_blocks):
            chain.append(Bottleneck(in_channels, channels, 2 if stage and not block else 1))
            in_channels = 4 * channels
    return Chain([*chain, classifier_head(in_channels)])


class DenseLayer(nn.Module):
    """x with `growth` channels more.

    Huang et al., "Densely Connected Convolutional Networks", 2017 (the BC variant).
    """

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            convolution(in_channels, 4 * growth, 1),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            convolution(4 * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet121() -> Chain:
    growth, channels = 32, 64
    chain = [stem(channels)]
    stages = (6, 12, 24, 16)
    for stage, num_layers in enumerate(stages):
        for _ in range(num_layers):
            chain.append(DenseLayer(channels, growth))
            channels += growth
        chain.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True)))
        if stage < len(stages) - 1:
            chain.append(nn.Sequential(convolution(channels, channels // 2, 1), nn.AvgPool2d(2)))
            channels //= 2
    return Chain([*chain, classifier_head(channels)])


def two_convolutions(in_channels: int, out_channels: int) -> nn.Module:
    return nn.Sequential(
        convolution(in_channels, out_channels, 3),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        convolution(out_channels, out_channels, 3),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class Down(nn.Module):
    """Halves the resolution; what it had before joins the skips."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layers = two_convolutions(in_channels, out_channels)

    def forward(self, x: Tensor, *skips: Tensor) -> tuple[Tensor, ...]:
        skip = self.layers(x)
        return functional.max_pool2d(skip, 2), skip, *skips


class Bottom(nn.Module):
    """The lowest resolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layers = two_convolutions(in_channels, out_channels)

    def forward(self, x: Tensor, *skips: Tensor) -> tuple[Tensor, ...]:
        return self.layers(x), *skips


class Up(nn.Module):
    """Doubles the resolution and uses the latest skip."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, 2, 2)
        self.layers = two_convolutions(2 * out_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor, *skips: Tensor) -> tuple[Tensor, ...]:
        return self.layers(torch.cat([skip, self.up(x)], 1)), *skips


def unet(width: int = 32) -> Chain:
    """Ronneberger et al., "U-Net", 2015, padded, with BatchNorm, at half its width."""
    widths = [width * 2**level for level in range(5)]
    chain: list[nn.Module] = [
        Down(before, after) for before, after in zip([3, *widths], widths[:-1], strict=False)
    ]
    chain.append(Bottom(widths[-2], widths[-1]))
    chain += [Up(2 * after, after) for after in reversed(widths[:-1])]
    return Chain([*chain, nn.Conv2d(width, 2, 1)])


class TransformerBlock(nn.Module):
    """Pre-norm block [B, T, W] -> [B, T, W] on scaled_dot_product_attention, q, k and v in one."""

    def __init__(self, width: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.projection(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    """Patches of images and a class token, with positions."""

    def __init__(self, width: int, patch: int, image_size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch) ** 2 + 1, width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1)
        return tokens + self.positions


class ClassTokenHead(nn.Module):
    """Classes from the first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)[:, 0])


def vit_s() -> Chain:
    """Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021; S as in DeiT (Touvron 2021)."""
    blocks = [TransformerBlock(384, 6, causal=False) for _ in range(12)]
    return Chain([PatchEmbedding(384, 16, 224), *blocks, ClassTokenHead(384)])


class TokenEmbedding(nn.Module):
    """Tokens [B, T] -> [B, T, W], with positions."""

    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(num_tokens, width) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions


class TokenHead(nn.Module):
    """Log of the sum over tokens, [B, T]: the part of the loss that takes memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)).logsumexp(-1)


def language_model() -> Chain:
    """A small causal transformer (Radford et al. 2019)."""
    blocks = [TransformerBlock(384, 6, causal=True) for _ in range(8)]
    return Chain([TokenEmbedding(384, 256), *blocks, TokenHead(384)])


@dataclass(frozen=True)
class Network:
    """A model and its input.

    Attributes:
        make_model: builds it, from torch's global generator.
        shape: of one sample.
        batch: a size that takes some seconds a step on one core.
    """

    make_model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int

    def build(self) -> nn.Module:
        """In training mode; convolutional networks in channels_last memory."""
        model = self.make_model().train()
        if len(self.shape) == 3:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def make_batch(self, batch: int) -> Tensor:
        """Random images, or random tokens."""
        if len(self.shape) == 1:
            return torch.randint(VOCABULARY, (batch, *self.shape))
        return torch.randn(batch, *self.shape).contiguous(memory_format=torch.channels_last)


NETWORKS = {
    "iresnet50": Network(lambda: build_backbone("iresnet50", 512), (3, 112, 112), 16),
    "iresnet100": Network(lambda: build_backbone("iresnet100", 512), (3, 112, 112), 8),
    "resnet50": Network(resnet50, (3, 224, 224), 8),
    "vit_s": Network(vit_s, (3, 224, 224), 16),
    "densenet": Network(densenet121, (3, 224, 224), 8),
    "unet": Network(unet, (3, 224, 224), 4),
    "language_model": Network(language_model, (256,), 8),
}
