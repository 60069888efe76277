"""Budgets of single blocks hold, and change nothing, under every ZeRO stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from facetrain.backbones import Backbone, build_backbone
from facetrain.config import OptimConfig
from facetrain.distributed import Communicator
from facetrain.margins import build_margin
from facetrain.memory import MemoptError, MemoryManager
from facetrain.zero import backbone_update
from memopt.capture import CostTable
from tests.ranks import raise_first, run_ranks

ROWS = 2


def _backbone() -> Backbone:
    torch.manual_seed(0)
    return build_backbone("mobilefacenet_tiny", 8).train()


def _with_budgets(
    communicator: Communicator, budget_bytes: dict[str, int], stage: int, accumulates: bool
) -> dict[str, Any]:
    """Two passes of a real backbone with and without a budget for each of some blocks."""
    found: dict[str, Any] = {}
    for budgeted in (False, True):
        # Not channels_last: sharded weights are contiguous, and plans are made for those.
        backbone = _backbone()
        torch.manual_seed(communicator.rank)
        images = torch.randn(ROWS, 3, 112, 112).contiguous(memory_format=torch.channels_last)
        memory = MemoryManager.fit_blocks(
            backbone,
            images,
            budget_bytes if budgeted else {},
            accumulates=accumulates,
            costs=CostTable(num_runs=1),
        )
        optim = OptimConfig(lr=1.0, zero_stage=stage)
        update = backbone_update(optim, backbone, build_margin("cosface"), communicator)
        for last in (False, True):
            with update.passes(last=last), memory.measure():
                memory.forward(images).square().sum().backward()
        update.clip(1e9)
        update.step()
        report = memory.report()
        found[f"report {budgeted}"] = report
        found[f"recomputed {budgeted}"] = memory._recompute_seconds
        weights = update.weights(wanted=True)
        found[f"weights {budgeted}"] = {name: value.clone() for name, value in weights.items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_blocks_with_a_budget_each_train_the_same_to_the_bit(stage: int) -> None:
    # Plain, two rows take 2.0 and 1.0 MB.
    budgets = {"layers.3.0": 1_700_000, "layers.5.0": 900_000}
    for found in raise_first(run_ranks(_with_budgets, 2, budgets, stage, stage < 2)):
        plain, budgeted = found["report False"], found["report True"]
        assert (plain.num_blocks, budgeted.num_blocks) == (0, 2)
        assert budgeted.num_dropped >= 2
        assert budgeted.measured_peak_bytes < plain.measured_peak_bytes
        assert found["recomputed True"] > 0 == found["recomputed False"]
        assert "a budget for each of 2 blocks" in budgeted.describe()
        for name, value in found["weights False"].items():
            assert torch.equal(found["weights True"][name], value)


def test_only_a_block_that_is_one_module_can_have_a_budget() -> None:
    backbone = _backbone()
    with pytest.raises(MemoptError, match=r"block head cannot have a budget: .* stem, layers\.1"):
        MemoryManager.fit_blocks(backbone, torch.zeros((ROWS, 3, 112, 112)), {"head": 2**30})


@pytest.mark.slow
def test_a_budget_too_small_for_its_block_names_the_block() -> None:
    backbone = _backbone()
    with pytest.raises(MemoptError, match=r"block layers\.5\.0: .*the least found"):
        MemoryManager.fit_blocks(
            backbone,
            torch.zeros((ROWS, 3, 112, 112)),
            {"layers.5.0": 1000},
            costs=CostTable(num_runs=1),
        )
