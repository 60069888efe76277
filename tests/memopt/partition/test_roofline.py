"""Times by a device's figures: hand-computed products, moves and views."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from memopt.capture import Recording
from memopt.partition.cluster import CLUSTERS
from memopt.partition.roofline import (
    operations,
    roofline_splits,
    total_operations,
    training_scale,
    with_roofline,
)
from memopt.plan import trace

DEVICE = CLUSTERS["v100-32g"].device
LAUNCH_US = 5.0


@pytest.fixture(scope="module")
def recording() -> Recording:
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.ReLU())
    return with_roofline(trace(net, (torch.empty(2, 4, 10, 10),)), DEVICE)


def named(recording: Recording, name: str) -> tuple[float, int]:
    """Time and operations of the one operator of that name."""
    assert recording.calls is not None
    (found,) = [
        (operator.cost_us, operations(call))
        for operator, call in zip(recording.graph.operators, recording.calls, strict=True)
        if operator.name == name
    ]
    return found


def test_a_convolutions_operations(recording: Recording) -> None:
    us, count = named(recording, "aten::convolution")
    assert count == 2 * (2 * 8 * 10 * 10) * (4 * 3 * 3)
    moved = 4 * (2 * 4 * 100 + 8 * 4 * 9 + 2 * 8 * 100)
    seconds = max(count / DEVICE.fp32_per_s, moved / DEVICE.memory_bytes_per_s)
    assert us == pytest.approx(LAUNCH_US + 1e6 * seconds)


def test_the_backward_pass_of_a_first_layer_has_one_product(recording: Recording) -> None:
    assert recording.calls is not None
    forward = named(recording, "aten::convolution")[1]
    assert named(recording, "aten::convolution_backward")[1] == forward
    assert total_operations(recording.calls) == 2 * forward


def test_element_wise_operators_cost_their_bytes(recording: Recording) -> None:
    us, count = named(recording, "aten::relu")
    assert count == 0
    moved = 2 * 4 * (2 * 8 * 100)
    assert us == pytest.approx(LAUNCH_US + 1e6 * moved / DEVICE.memory_bytes_per_s)


def test_a_batch_norms_output_is_remade_by_moving_it() -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)).train()
    found = roofline_splits(trace(net, (torch.empty(2, 4, 10, 10),)), DEVICE)
    (split,) = found.values()
    statistics = 4 * 4 * 8  # mean, 1 / deviation, weight, bias
    moved = 2 * 4 * (2 * 8 * 100) + statistics
    assert split.cost_us == pytest.approx(LAUNCH_US + 1e6 * moved / DEVICE.memory_bytes_per_s)


def test_views_are_free() -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).relu()

    found = with_roofline(trace(Flat(), (torch.empty(2, 4, 10).requires_grad_(),)), DEVICE)
    views = [op for op in found.graph.operators if op.name in ("aten::view", "aten::detach")]
    assert views
    assert all(op.cost_us == 0 for op in views)


def test_a_network_is_scaled_to_the_rate_that_training_reaches() -> None:
    scale = training_scale(3.0e12, 1e5, DEVICE)
    assert 1e5 * scale == pytest.approx(1e6 * 3.0e12 / (0.23 * 125e12))
    assert training_scale(0, 0, DEVICE) == 1.0
