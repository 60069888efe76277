"""IResNet: the residual network of ArcFace (pre-activation BatchNorm, PReLU, 112x112 input).

Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019, section
3.1; Duta et al., "Improved Residual Networks for Image and Video Recognition", 2020. State-dict
names, shapes, initialisation and outputs equal those of arcface_torch, so its weights load.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from facetrain.backbones.prelu import PReLU
from facetrain.backbones.segments import Backbone, Segment

_STAGE_WIDTHS = (64, 128, 256, 512)


class IResNetBlock(nn.Module):
    """x + BN(conv(PReLU(BN(conv(BN(x)))))), the stride in the second convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.prelu = PReLU(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        # First, so that backward comes to it last and its full-size gradient does not wait.
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        return self.bn3(self.conv2(out)) + shortcut


class IResNet(Backbone):
    """IResNet with `blocks[i]` residual blocks in stage i; every stage halves the resolution.

    Args:
        embedding_size: D, the size of the embedding.
        dropout: probability of dropping a feature before the projection.
        blocks: number of residual blocks of the four stages.
    """

    projection_name = "fc.weight"

    def __init__(self, embedding_size: int, dropout: float, *, blocks: Sequence[int]) -> None:
        super().__init__(embedding_size)
        channels = _STAGE_WIDTHS[0]
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.prelu = PReLU(channels)
        for stage, (width, num_blocks) in enumerate(zip(_STAGE_WIDTHS, blocks, strict=True), 1):
            layer = [IResNetBlock(channels, width, stride=2)]
            layer += [IResNetBlock(width, width, stride=1) for _ in range(num_blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*layer))
            channels = width
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        side = self.image_size // 2 ** len(_STAGE_WIDTHS)
        self.fc = nn.Linear(channels * side * side, embedding_size)
        self.features = nn.BatchNorm1d(embedding_size)
        # A scale in front of the L2-normalised product would be lost in it; it stays 1.
        self.features.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, 0.1)

    def segments(self) -> list[Segment]:
        chain = [Segment("stem", self._stem, (self.conv1, self.bn1, self.prelu))]
        for stage in range(1, len(_STAGE_WIDTHS) + 1):
            layer = self.get_submodule(f"layer{stage}")
            for index, block in enumerate(layer.children()):
                chain.append(Segment(f"layer{stage}.{index}", block, (block,)))
        chain.append(Segment("head", self._head, (self.bn2, self.dropout, self.fc, self.features)))
        return chain

    def _stem(self, images: Tensor) -> Tensor:
        return self.prelu(self.bn1(self.conv1(images)))

    def _head(self, x: Tensor) -> Tensor:
        features = self.dropout(torch.flatten(self.bn2(x), 1))
        # The projection sums 25,088 products: fp32 also under autocast.
        with torch.autocast(x.device.type, enabled=False):
            return self.features(self.fc(features.float()))


def iresnet18(embedding_size: int, dropout: float = 0.0) -> IResNet:
    return IResNet(embedding_size, dropout, blocks=(2, 2, 2, 2))


def iresnet34(embedding_size: int, dropout: float = 0.0) -> IResNet:
    return IResNet(embedding_size, dropout, blocks=(3, 4, 6, 3))


def iresnet50(embedding_size: int, dropout: float = 0.0) -> IResNet:
    return IResNet(embedding_size, dropout, blocks=(3, 4, 14, 3))


def iresnet100(embedding_size: int, dropout: float = 0.0) -> IResNet:
    return IResNet(embedding_size, dropout, blocks=(3, 13, 30, 3))


def iresnet200(embedding_size: int, dropout: float = 0.0) -> IResNet:
    return IResNet(embedding_size, dropout, blocks=(6, 26, 60, 6))
