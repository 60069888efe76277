"""MobileFaceNet: inverted bottlenecks and a global depthwise convolution, for 112x112 faces.

Chen et al., "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile
Devices", 2018. `mobilefacenet` and `mobilefacenet_large` have the state-dict names, shapes,
initialisation and outputs of arcface_torch, so its weights load; `_small` and `_tiny` are the same
network with every width at a half and a quarter, and fewer blocks, for runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from facetrain.backbones.prelu import PReLU
from facetrain.backbones.segments import Backbone, Segment


class ConvBlock(nn.Module):
    """Convolution, BatchNorm and, unless `linear`, PReLU; padded to keep an odd kernel's grid."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        padding: int | None = None,
        linear: bool = False,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.layers = nn.Sequential(
            nn.Conv2d(
                in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_channels),
        )
        if not linear:
            self.layers.append(PReLU(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Bottleneck(nn.Module):
    """Widen to `expansion` channels, 3x3 per channel, narrow; plus the input when `residual`."""

    def __init__(
        self, in_channels: int, out_channels: int, expansion: int, *, stride: int, residual: bool
    ) -> None:
        super().__init__()
        self.residual = residual
        self.layers = nn.Sequential(
            ConvBlock(in_channels, expansion),
            ConvBlock(expansion, expansion, 3, stride=stride, groups=expansion),
            ConvBlock(expansion, out_channels, linear=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class ResidualStage(nn.Module):
    """A run of residual bottlenecks at one width."""

    def __init__(self, channels: int, num_blocks: int, expansion: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                Bottleneck(channels, channels, expansion, stride=1, residual=True)
                for _ in range(num_blocks)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class GlobalDepthwise(nn.Module):
    """One weight per channel and position, then the projection: [B, C, 7, 7] -> [B, D]."""

    def __init__(self, channels: int, side: int, embedding_size: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvBlock(channels, channels, side, groups=channels, padding=0, linear=True),
            nn.Sequential(nn.Flatten(), nn.Dropout(dropout)),
            nn.Linear(channels, embedding_size, bias=False),
            nn.BatchNorm1d(embedding_size),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class MobileFaceNet(Backbone):
    """MobileFaceNet.

    Args:
        embedding_size: D, the size of the embedding.
        dropout: probability of dropping a feature before the projection.
        blocks: blocks of the four stages; a single one in the first is a grouped convolution.
        width: channels of the first two stages; the last two have twice as many.
        expansion: channels inside the first bottlenecks; later ones have two or four times these.
        head_width: channels in front of the global depthwise convolution.
    """

    projection_name = "features.layers.2.weight"

    def __init__(
        self,
        embedding_size: int,
        dropout: float,
        *,
        blocks: Sequence[int],
        width: int,
        expansion: int,
        head_width: int,
    ) -> None:
        super().__init__(embedding_size)
        wide = 2 * width

        def halve(in_channels: int, out_channels: int, expansion: int) -> Bottleneck:
            return Bottleneck(in_channels, out_channels, expansion, stride=2, residual=False)

        self.layers = nn.ModuleList(
            [
                ConvBlock(3, width, 3, stride=2),
                ConvBlock(width, width, 3, groups=width // 2)
                if blocks[0] == 1
                else ResidualStage(width, blocks[0], expansion),
                halve(width, width, expansion),
                ResidualStage(width, blocks[1], expansion),
                halve(width, wide, 2 * expansion),
                ResidualStage(wide, blocks[2], 2 * expansion),
                halve(wide, wide, 4 * expansion),
                ResidualStage(wide, blocks[3], 2 * expansion),
            ]
        )
        self.conv_sep = ConvBlock(wide, head_width)
        self.features = GlobalDepthwise(head_width, self.image_size // 16, embedding_size, dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def segments(self) -> list[Segment]:
        chain = []
        for index, layer in enumerate(self.layers):
            if isinstance(layer, ResidualStage):
                for inner, block in enumerate(layer.layers):
                    chain.append(Segment(f"layers.{index}.{inner}", block, (block,)))
            else:
                chain.append(Segment(f"layers.{index}" if index else "stem", layer, (layer,)))
        chain.append(Segment("head", self._head, (self.conv_sep, self.features)))
        return chain

    def _head(self, x: Tensor) -> Tensor:
        # As in IResNet, the embedding is formed in fp32 also under autocast.
        with torch.autocast(x.device.type, enabled=False):
            return self.features(self.conv_sep(x.float()))


def mobilefacenet(embedding_size: int, dropout: float = 0.0) -> MobileFaceNet:
    return MobileFaceNet(
        embedding_size, dropout, blocks=(1, 4, 6, 2), width=128, expansion=128, head_width=512
    )


def mobilefacenet_large(embedding_size: int, dropout: float = 0.0) -> MobileFaceNet:
    return MobileFaceNet(
        embedding_size, dropout, blocks=(2, 8, 12, 4), width=256, expansion=128, head_width=512
    )


def mobilefacenet_small(embedding_size: int, dropout: float = 0.0) -> MobileFaceNet:
    return MobileFaceNet(
        embedding_size, dropout, blocks=(1, 2, 3, 1), width=64, expansion=64, head_width=256
    )


def mobilefacenet_tiny(embedding_size: int, dropout: float = 0.0) -> MobileFaceNet:
    return MobileFaceNet(
        embedding_size, dropout, blocks=(1, 1, 2, 1), width=32, expansion=32, head_width=128
    )
