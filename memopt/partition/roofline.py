"""Time of an operator on a device that is not at hand: the larger of computing and moving.

    us = launch + max(operations / rate of their type, bytes read and written / bandwidth)

Operations are counted by PyTorch's own formulas (torch.utils.flop_counter), from shapes alone. What
devices reach on convolutions is far from this, so a network's times are scaled as a whole to the
rate that training reaches on the device (`Device.training_share`): the roofline gives each
operator's share, the published figure the sum.
Williams, Waterman, Patterson: Roofline, Communications of the ACM, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memopt.capture import Recording
from memopt.capture.recording import Call, TensorView, views
from memopt.controlled import Split
from memopt.execute import find_splits
from memopt.partition.cluster import Device

_LAUNCH_US = 5.0  # a kernel's, as CUDA's launch latency is commonly measured


def operations(call: Call) -> int:
    """Multiplications and additions of a product or convolution; 0 for what has none."""
    count = flop_registry.get(call.function.overloadpacket)
    if count is None:
        return 0
    args, kwargs, results = _shaped((call.args, call.kwargs, call.results))
    return int(count(*args, **kwargs, out_val=results))


def roofline_us(call: Call, device: Device) -> float:
    """Time of a call; 0 for one that only makes views."""
    inputs, results = list(views((call.args, call.kwargs))), list(views(call.results))
    if results and {view.value for view in results} <= {view.value for view in inputs}:
        written = call.function._schema.is_mutable
        if not written:
            return 0.0
    moved_bytes = sum(_num_bytes(view) for view in [*inputs, *results])
    is_half = any(view.dtype.itemsize == 2 for view in inputs)
    rate = device.half_per_s if is_half else device.fp32_per_s
    seconds = max(operations(call) / rate, moved_bytes / device.memory_bytes_per_s)
    return _LAUNCH_US + 1e6 * seconds


def with_roofline(recording: Recording, device: Device) -> Recording:
    """A traced iteration with times of the device, not scaled yet: see `training_scale`."""
    assert recording.calls is not None
    operators = tuple(
        replace(operator, cost_us=roofline_us(call, device))
        for operator, call in zip(recording.graph.operators, recording.calls, strict=True)
    )
    return replace(recording, graph=replace(recording.graph, operators=operators))


def roofline_splits(recording: Recording, device: Device) -> dict[int, Split]:
    """Operators whose output is made again by moving bytes alone (BatchNorm), with that time."""
    graph = recording.graph

    def num_bytes(value: int) -> int:
        return graph.storages[graph.values[value].storage].size_bytes

    return {
        number: replace(
            split,
            cost_us=_LAUNCH_US
            + 1e6 * sum(map(num_bytes, (*split.reads, split.remade))) / device.memory_bytes_per_s,
        )
        for number, split in find_splits(recording, None).items()
    }


def training_scale(num_operations: float, roofline_sum_us: float, device: Device) -> float:
    """What roofline times are multiplied by so that all of them reach the published rate."""
    if not num_operations or not roofline_sum_us:
        return 1.0
    return 1e6 * num_operations / device.training_per_s / roofline_sum_us


def total_operations(calls: Sequence[Call]) -> int:
    """Of a whole iteration."""
    return sum(map(operations, calls))


def _num_bytes(view: TensorView) -> int:
    count = 1
    for size, stride in zip(view.shape, view.stride, strict=False):
        count *= size if stride else 1
    return count * view.dtype.itemsize


def _shaped(tree: Any) -> Any:
    """The same with tensors that have shapes only."""

    def shaped(item: Any) -> Any:
        if isinstance(item, TensorView):
            return torch.empty(item.shape, dtype=item.dtype, device="meta")
        if isinstance(item, tuple):
            return tuple(shaped(part) for part in item)
        if isinstance(item, dict):
            return {key: shaped(part) for key, part in item.items()}
        return item

    return shaped(tree)
