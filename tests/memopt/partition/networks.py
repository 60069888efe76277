"""A small chain of convolutional layers, traced alone and as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from memopt.controlled import controlled
from memopt.graph import OpGraph
from memopt.partition.chain import Chain, Conversion, Option, Stage
from memopt.partition.cluster import CLUSTERS
from memopt.partition.layers import Layer, LayerModel
from memopt.partition.roofline import roofline_splits, with_roofline
from memopt.partition.strategies import Setting
from memopt.partition.strategies.replicated import replicated
from memopt.plan import trace

CHANNELS, SIDE = 8, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(CHANNELS)
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(CHANNELS)
        self.prelu = nn.PReLU(CHANNELS)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x)))))
        return out + x


def network(num_blocks: int) -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
    return nn.Sequential(stem, *(Block() for _ in range(num_blocks))).train()


def images(rows: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 3, SIDE, SIDE)


def graph_of(module: nn.Module, example: Tensor) -> OpGraph:
    device = CLUSTERS["v100-32g"].device
    recording = with_roofline(trace(module, (example,)), device)
    return controlled(recording, roofline_splits(recording, device)).graph


def layer_models(net: nn.Sequential, base_rows: int = 2) -> list[LayerModel]:
    models = []
    for number, module in enumerate(net):
        shape = (3 if number == 0 else CHANNELS, SIDE, SIDE)

        def graph_at(
            rows: int, module: nn.Module = module, shape: tuple[int, ...] = shape
        ) -> OpGraph:
            example = torch.empty((rows, *shape)).requires_grad_(shape[0] != 3)
            return graph_of(module, example)

        models.append(
            LayerModel(
                graph_at,
                name=str(number),
                weight_bytes=sum(p.nbytes for p in module.parameters()),
                input_row_bytes=0 if number == 0 else 4 * CHANNELS * SIDE * SIDE,
                base_rows=base_rows,
            )
        )
    return models


def chain_of(layers: Sequence[Layer], loss_bytes: int = 0) -> Chain:
    """Layers replicated on one device, in every way, and a loss of so many bytes.

    Who calls the network holds its output for the whole step; its gradient is there at the loss.
    """
    setting = Setting(CLUSTERS["v100-32g"].resized(1), state_ratio=1.0)
    stages = [
        Stage(layer.name, tuple(replicated(layer, way, setting) for way in layer.ways))
        for layer in layers
    ]
    output_bytes = layers[-1].output_bytes
    loss = Option("loss", "", 0.0, 0, 0, loss_bytes + output_bytes, 0)
    return Chain(
        (*stages, Stage("loss", (loss,))), lambda *_: Conversion(), constant_bytes=output_bytes
    )
