"""The planned chain against the whole backbone's own trace."""

from __future__ import annotations

import pytest
import torch

from facetrain.backbones import build_backbone
from facetrain.planning.layers import BackboneModel, empty_backbone
from memopt.controlled import controlled
from memopt.partition.chain import outcome
from memopt.plan import trace
from tests.facetrain.planning.problems import backbone, planner, problem

ROWS = 8


def test_layers_are_the_backbones_segments() -> None:
    layers = backbone().at(ROWS)
    real = build_backbone("mobilefacenet_tiny", 128)
    assert [layer.name for layer in layers] == [segment.name for segment in real.segments()]
    trained = sum(p.nbytes for p in real.parameters() if p.requires_grad)
    assert sum(layer.weight_bytes for layer in layers) == backbone().weight_bytes == trained
    assert backbone().buffer_bytes == sum(buffer.nbytes for buffer in real.buffers())


def test_layers_add_up_to_the_whole_networks_peak() -> None:
    chain = planner(problem(num_devices=1, num_classes=2)).chain(1)
    choice = [
        next(o for o in stage.options if o.strategy == "replicated" and o.detail == "all kept")
        for stage in chain.stages[:-1]
    ]
    loss = min((o for o in chain.stages[-1].options if o.is_executable), key=lambda o: o.work_bytes)
    cost = outcome(chain, [*choice, loss])
    added = cost.peak_bytes - chain.constant_bytes - cost.weight_bytes
    images = torch.empty((ROWS, 3, 112, 112), memory_format=torch.channels_last)
    whole = empty_backbone(problem())
    with torch.autocast("cpu", torch.bfloat16):
        graph = controlled(trace(whole, (images,))).graph
    assert added == pytest.approx(graph.plain_peak_bytes(), rel=0.02)


def test_times_reach_the_published_rate() -> None:
    """All layers together train at the share of the peak that is published for the device."""
    one = problem()
    layers = backbone().at(ROWS)
    total_us = sum(layer.forward_us + layer.backward_us for layer in layers)
    count = sum(model.num_operations for model in backbone()._models)
    rate = one.cluster.device.training_per_s
    assert total_us == pytest.approx(1e6 * count / rate)


def test_a_batch_larger_than_this_machine_is_planned() -> None:
    """2**22 images are 630 GB; only shapes are made."""
    one = problem(num_devices=1, num_classes=2, rows=2**22)
    assert BackboneModel(one).at(one.rows)[0].output_bytes > 2**39
