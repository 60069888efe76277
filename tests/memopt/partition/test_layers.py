"""Layers traced alone add up to the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memopt.graph import with_loss_bytes
from memopt.live_bytes import LiveBytes
from memopt.partition.chain import Option, outcome
from memopt.partition.layers import ALL_KEPT, CHECKPOINT, Layer, run_of
from memopt.partition.search import search
from tests.memopt.partition.networks import chain_of, graph_of, images, layer_models, network

ROWS = 12
NOISE_BYTES = 6_000  # scalars, statistics of BatchNorm


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    return network(4)


@pytest.fixture(scope="module")
def layers(net: nn.Sequential) -> list[Layer]:
    return [model.at(ROWS) for model in layer_models(net)]


def step_bytes(option: Option) -> int:
    """Bytes that a step adds; a layer's weights and state rest."""
    return option.resting_bytes


@pytest.mark.parametrize("loss_bytes", [0, 3_000_000])
def test_all_kept_equals_the_whole_networks_trace(
    net: nn.Sequential, layers: list[Layer], loss_bytes: int
) -> None:
    chain = chain_of(layers, loss_bytes)
    choice = [stage.options[0] for stage in chain.stages]
    assert choice[0].detail == ALL_KEPT
    predicted = outcome(chain, choice).peak_bytes - sum(map(step_bytes, choice))
    whole = graph_of(net, images(ROWS))
    assert predicted == pytest.approx(
        with_loss_bytes(whole, loss_bytes).plain_peak_bytes(), abs=NOISE_BYTES, rel=0.01
    )


def test_checkpoints_equal_a_measured_step(net: nn.Sequential, layers: list[Layer]) -> None:
    chain = chain_of(layers)
    # The stem keeps all: torch does not checkpoint what has no input that needs a gradient.
    choice = [
        next(o for o in stage.options if o.detail == (CHECKPOINT if n else ALL_KEPT))
        for n, stage in enumerate(chain.stages[:-1])
    ]
    predicted = outcome(chain, [*choice, chain.stages[-1].options[0]]).peak_bytes
    predicted -= sum(map(step_bytes, choice))
    batch = images(ROWS)
    with LiveBytes() as live:
        out = net[0](batch)
        for block in list(net)[1:]:
            out = checkpoint(block, out, use_reentrant=False)
        torch.autograd.backward(out, torch.ones_like(out))
        del out
    net.zero_grad(set_to_none=True)
    assert predicted == pytest.approx(live.peak_bytes, rel=0.03)


def test_ways_trade_bytes_for_time(layers: list[Layer]) -> None:
    layer = layers[1]
    assert layer.ways[0].recompute_us == 0
    assert layer.ways[-1].kept_bytes == 0
    least = min(layer.ways, key=lambda way: way.kept_bytes)
    assert least.kept_bytes < 0.1 * layer.ways[0].kept_bytes
    planned = [way for way in layer.ways if way.name != CHECKPOINT]
    leanest = min(planned, key=lambda way: (way.kept_bytes, way.recompute_us))
    assert leanest.recompute_us <= layer.forward_us


def test_rows_scale_bytes(net: nn.Sequential) -> None:
    model = layer_models(net[:2])[1]
    small, large = model.at(4), model.at(16)
    assert large.input_bytes == 4 * small.input_bytes
    assert large.weight_bytes == small.weight_bytes
    weights = small.ways[0].kept_bytes * 4 - large.ways[0].kept_bytes  # BatchNorm's statistics
    assert 0 <= weights <= NOISE_BYTES


def test_runs_of_layers_hold_less_than_their_inputs(
    net: nn.Sequential, layers: list[Layer]
) -> None:
    """Only the first input is kept; the peak is that of a measured nested checkpoint."""
    run = run_of(layers[1:])
    (way,) = run.ways
    assert way.kept_bytes == 0
    assert run.input_bytes == layers[1].input_bytes
    assert run.weight_bytes == sum(layer.weight_bytes for layer in layers[1:])
    assert way.recompute_us > sum(layer.forward_us for layer in layers[1:-1])
    inputs = sum(layer.input_bytes for layer in layers[2:])
    assert way.work_bytes >= inputs + min(w.work_bytes for w in layers[-1].ways)

    batch = images(ROWS)

    def blocks(x: torch.Tensor) -> torch.Tensor:
        for block in list(net)[1:]:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    with LiveBytes() as live:
        out = checkpoint(blocks, net[0](batch), use_reentrant=False)
        torch.autograd.backward(out, torch.ones_like(out))
        del out
    net.zero_grad(set_to_none=True)
    plain = next(w.work_bytes for w in layers[1].ways if w.name == CHECKPOINT)
    lean = min(layers[1].ways, key=lambda w: (w.kept_bytes, w.recompute_us)).work_bytes
    # torch checkpoints each block whole; the planner's leanest way works with less.
    predicted = run.input_bytes + way.work_bytes + (plain - lean) + run.output_bytes
    assert predicted == pytest.approx(live.peak_bytes, rel=0.1)


def test_a_search_over_layers_meets_a_budget(layers: list[Layer]) -> None:
    front = search(chain_of(layers, 200_000))
    fastest, smallest = front.trades()[0][0], front.trades()[-1][0]
    assert smallest < 0.6 * fastest
    middle = front.best((fastest + smallest) // 2).outcome
    assert smallest <= middle.peak_bytes <= (fastest + smallest) // 2
