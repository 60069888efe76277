"""What a plan leaves for a step, by hand, and the comparison at a run's end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from facetrain.backbones import Backbone, build_backbone
from facetrain.config import HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.distributed import SingleCommunicator, World
from facetrain.errors import FacetrainError
from facetrain.head import build_head
from facetrain.memory import MemoryReport
from facetrain.planning.execution import Room, plan_result, room_for_backbone
from facetrain.planning.plan_file import PlanFile

CONFIG = RunConfig(
    model=ModelConfig(backbone="mobilefacenet_tiny", embedding_size=64),
    head=HeadConfig(margin="cosface"),
    optim=OptimConfig(global_batch_size=4),
    plan="plan.json",
)
CLASSES, MEBI = 1000, 2**20


def plan(memory_bytes: int) -> PlanFile:
    return PlanFile({"memory_bytes": memory_bytes}, {}, step_us=2e6, peak_bytes=50 * MEBI)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return build_backbone("mobilefacenet_tiny", 64)


def room(config: RunConfig, backbone: Backbone, memory_bytes: int = 100 * MEBI) -> tuple[Room, int]:
    """The room, and the head's transient bytes."""
    communicator = SingleCommunicator()
    head = build_head(config, CLASSES, None, communicator, World.from_environment())
    transient = head.schedule(config.optim.largest_micro_batch).transient_bytes
    found = room_for_backbone(plan(memory_bytes), config, backbone, head, communicator)
    return found, transient


def test_what_rests_is_counted_one_by_one(backbone: Backbone) -> None:
    found, transient = room(CONFIG, backbone)
    weights = sum(parameter.nbytes for parameter in backbone.parameters())
    trained = sum(p.nbytes for p in backbone.parameters() if p.requires_grad)
    buffers = sum(buffer.nbytes for buffer in backbone.buffers())
    images = 4 * 3 * 112 * 112
    centers = CLASSES * 64 * 4
    expected = weights + trained + 2 * buffers + images + 4 * images + 2 * centers
    assert found.resting_bytes == expected
    assert found.gradient_bytes == 0
    assert found.budget_bytes == 100 * MEBI - expected
    assert found.loss_bytes == transient


def test_a_whole_gradient_of_the_centers_stays_to_the_step(backbone: Backbone) -> None:
    plain, _ = room(CONFIG, backbone)
    cut = replace(CONFIG, optim=replace(CONFIG.optim, micro_batches=2))
    found, transient = room(cut, backbone)
    assert found.gradient_bytes == CLASSES * 64 * 4
    assert found.loss_bytes == transient - found.gradient_bytes
    images = 4 * 3 * 112 * 112
    assert found.resting_bytes == plain.resting_bytes - 5 * images // 2
    assert found.budget_bytes == 100 * MEBI - found.resting_bytes - found.gradient_bytes


def test_adamw_rests_two_states(backbone: Backbone) -> None:
    adamw = replace(CONFIG, optim=replace(CONFIG.optim, optimizer="adamw"))
    trained = sum(p.nbytes for p in backbone.parameters() if p.requires_grad)
    more = room(adamw, backbone)[0].resting_bytes - room(CONFIG, backbone)[0].resting_bytes
    num_steps = 4 * CLASSES  # a counter of each center
    assert more == trained + CLASSES * 64 * 4 + num_steps


def test_a_plan_smaller_than_what_rests(backbone: Backbone) -> None:
    with pytest.raises(FacetrainError, match=r"--plan plan.json: weights, .* the plan is for 1.0M"):
        room(CONFIG, backbone, memory_bytes=MEBI)


def report(predicted: int | None, measured: int | None) -> MemoryReport:
    return MemoryReport(None, None, predicted, None, measured, None, None, 0, 0)


def test_the_comparison_takes_the_fullest_rank() -> None:
    one = Room(10 * MEBI, 2 * MEBI, 60 * MEBI, MEBI)
    reports = [report(40 * MEBI, 38 * MEBI), report(44 * MEBI, 45 * MEBI)]
    found = plan_result(plan(80 * MEBI), one, reports, 2.5e6)
    assert found.predicted_peak_bytes == 56 * MEBI
    assert found.measured_peak_bytes == 55 * MEBI
    assert found.describe() == (
        "plan for 80.0MiB: peak 56.0MiB predicted, 55.0MiB measured (98.2%); "
        "2,000 ms a step predicted, 2,500 ms measured (125%)"
    )


def test_without_a_plan_of_passes_the_files_own_figure_counts() -> None:
    one = Room(10 * MEBI, 0, None, MEBI)
    found = plan_result(plan(80 * MEBI), one, [report(None, None)], 0.0)
    assert found.predicted_peak_bytes == 50 * MEBI
    assert found.measured_peak_bytes is None
    assert found.describe().endswith("peak 50.0MiB predicted; 2,000 ms a step predicted")
