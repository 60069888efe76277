"""An iteration recorded on a CUDA device; `pytest -m gpu` where there is one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memopt.capture import CostTable, fake_copy, fingerprint, record, record_fake
from memopt.live_bytes import LiveBytes
from tests.memopt.capture.steps import Built

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def build(net: nn.Module) -> Built:
    x = torch.randn(64, 256, device="cuda")

    def step() -> None:
        net.zero_grad()
        net(x).square().mean().backward()

    return step, [net, x]


def test_recorded_peak_and_times_on_a_device() -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    step, resting = build(net)
    step()
    with LiveBytes() as live:
        net.zero_grad()
        live.reset_peak()
        step()
    recording = record(step, resting=resting)
    assert recording.graph.plain_peak_bytes() == live.peak_bytes
    assert sum(op.cost_us for op in recording.graph.operators if op.backward) > 0


def test_fake_recording_for_a_device_is_the_real_one() -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    table = CostTable()
    fake = record_fake(lambda: build(fake_copy(net, device="cuda")), costs=table)
    step, resting = build(net.cuda())
    assert fingerprint(record(step, resting=resting)) == fingerprint(fake)
    assert fake.graph.total_cost_us() > 0
