"""A planned pass lives as long as what autograd holds of it. What it computes: test_budgeted.py."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memopt
from memopt.execute import PlannedPass
from memopt.live_bytes import LiveBytes


def test_a_pass_goes_with_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without backward too: what is kept must not hold the graph that holds it."""
    passes: list[weakref.ref[PlannedPass]] = []
    begin: Callable[..., None] = PlannedPass.__init__

    def noted(self: PlannedPass, *args: Any) -> None:
        begin(self, *args)
        passes.append(weakref.ref(self))

    monkeypatch.setattr(PlannedPass, "__init__", noted)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Tanh()) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(256, 32)
    with LiveBytes() as live:
        model(x).sum().backward()
    model.zero_grad()
    memopt.budget(model, int(0.8 * live.peak_bytes))
    output = model(x)
    assert [one() is not None for one in passes] == [True]
    del output
    gc.collect()
    assert [one() for one in passes] == [None]
