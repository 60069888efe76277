"""A backbone's segments as layers of a planned chain.

Each distinct segment is traced alone under fake tensors, so no weights and no images exist; a
network of equal blocks is traced once for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from facetrain.backbones import Backbone, Segment, build_backbone
from facetrain.planning.problem import IMAGE_CHANNELS, Problem
from memopt.capture import CostTable, Recording
from memopt.controlled import controlled
from memopt.execute import find_splits
from memopt.graph import OpGraph
from memopt.partition.layers import Layer, LayerModel
from memopt.partition.roofline import (
    roofline_splits,
    total_operations,
    training_scale,
    with_roofline,
)
from memopt.plan import trace, with_costs


class BackboneModel:
    """The backbone of a problem at any number of rows.

    Attributes:
        buffer_bytes: BatchNorm statistics and the like.
        largest_weight_bytes: of one parameter.
        weight_bytes: of all trained parameters.
    """

    def __init__(self, problem: Problem, costs: CostTable | None = None) -> None:
        backbone = empty_backbone(problem)
        trained = [p for p in backbone.parameters() if p.requires_grad]
        self.buffer_bytes = sum(buffer.nbytes for buffer in backbone.buffers())
        self.weight_bytes = sum(parameter.nbytes for parameter in trained)
        self.largest_weight_bytes = max(parameter.nbytes for parameter in trained)
        self._scale = 1.0
        self._models = _models(backbone, problem, costs or CostTable())
        if not problem.is_measured:
            self._scale = training_scale(
                sum(model.num_operations for model in self._models),
                sum(model.us for model in self._models),
                problem.cluster.device,
            )

    def at(self, rows: int) -> list[Layer]:
        """The layers with so many images on each device."""
        return [_named(one.model.at(rows), one.name, self._scale) for one in self._models]


class _SegmentModel:
    """One segment's model; equal segments share it."""

    def __init__(self, name: str, model: LayerModel, num_operations: int, us: float) -> None:
        self.name = name
        self.model = model
        self.num_operations = num_operations
        self.us = us


def empty_backbone(problem: Problem) -> Backbone:
    """The problem's backbone with memory that was never written, so that it takes none."""
    model = problem.config.model
    with torch.device("meta"):
        backbone = build_backbone(model.backbone, model.embedding_size, model.dropout)
    backbone.to_empty(device="cpu").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone.train()


def _models(backbone: Backbone, problem: Problem, costs: CostTable) -> list[_SegmentModel]:
    size = backbone.image_size
    activation = torch.empty((problem.rows, IMAGE_CHANNELS, size, size), device="meta")
    known: dict[Any, tuple[_SegmentModel, Tensor]] = {}
    found = []
    for segment in backbone.segments():
        key = _signature(segment, activation)
        if key not in known:
            known[key] = _model(segment, activation, problem, costs)
        model, output = known[key]
        found.append(_SegmentModel(segment.name, model.model, model.num_operations, model.us))
        activation = output
    return found


def _signature(segment: Segment, activation: Tensor) -> Any:
    """What decides on a segment's trace."""
    return repr(segment.modules), activation.shape, activation.dtype, activation.requires_grad


def _model(
    segment: Segment, activation: Tensor, problem: Problem, costs: CostTable
) -> tuple[_SegmentModel, Tensor]:
    """A segment's model, and what it gives: a tensor without memory."""
    link = _Link(segment)
    recordings: list[Recording] = []

    def graph_at(rows: int) -> OpGraph:
        shape = (rows, *activation.shape[1:])
        layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        with FakeTensorMode():  # only lends its shape, and may be larger than this machine
            images = torch.empty(shape, dtype=activation.dtype, memory_format=layout)
        images.requires_grad_(activation.requires_grad)
        with torch.autocast("cpu", problem.precision, enabled=problem.precision is not None):
            recording = trace(link, (images,))
        if problem.is_measured:
            timed = with_costs(recording, costs) if not recordings else recording
            recordings.append(timed)  # times of the first size do for all
            return _slowed(controlled(timed, find_splits(timed, costs)).graph, problem.slowdown)
        device = problem.cluster.device
        recordings.append(with_roofline(recording, device))
        return controlled(recordings[-1], roofline_splits(recordings[-1], device)).graph

    model = LayerModel(
        graph_at,
        name=segment.name,
        weight_bytes=sum(
            p.nbytes for module in segment.modules for p in module.parameters() if p.requires_grad
        ),
        input_row_bytes=activation[0].nbytes if activation.requires_grad else 0,
        base_rows=problem.rows,
    )
    shape, dtype = link.gives.shape_and_type
    output = torch.empty((problem.rows, *shape[1:]), dtype=dtype, device="meta")
    calls = recordings[0].calls
    assert calls is not None
    one = _SegmentModel(
        segment.name, model, total_operations(calls), recordings[0].graph.total_cost_us()
    )
    return one, output.requires_grad_()


def _slowed(graph: OpGraph, slowdown: float) -> OpGraph:
    operators = tuple(replace(op, cost_us=op.cost_us * slowdown) for op in graph.operators)
    return replace(graph, operators=operators)


def _named(layer: Layer, name: str, scale: float) -> Layer:
    return replace(
        layer,
        name=name,
        forward_us=layer.forward_us * scale,
        backward_us=layer.backward_us * scale,
        ways=tuple(replace(way, recompute_us=way.recompute_us * scale) for way in layer.ways),
    )


class _Gives:
    """Notes what a traced copy gives; copies of the link share it."""

    shape_and_type: tuple[torch.Size, torch.dtype]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Gives:
        return self


class _Link(nn.Module):
    """A segment as a module of its own, with its modules and none of the others."""

    def __init__(self, segment: Segment) -> None:
        super().__init__()
        self.gives = _Gives()
        owner: Any = getattr(segment.forward, "__self__", segment.forward)
        if len(segment.modules) == 1 and owner is segment.modules[0]:
            self.owner, self._method = owner, None
            return
        lean = copy.copy(owner)
        lean._modules = {n: m for n, m in owner._modules.items() if m in segment.modules}
        self.owner = lean
        method: Callable[..., Tensor] = segment.forward.__func__  # type: ignore[attr-defined]
        self._method = method

    def forward(self, activation: Tensor) -> Tensor:
        run = self.owner if self._method is None else MethodType(self._method, self.owner)
        output: Tensor = run(activation)
        self.gives.shape_and_type = output.shape, output.dtype
        return output
