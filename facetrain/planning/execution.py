"""Runs a plan in training: where it comes from, what it leaves for the backbone, what came of it.

plan = plan_of_run(config, num_classes, communicator, device)     # a file's, or made here
config = plan.applied(config)
room = room_for_backbone(plan, config, backbone, head, communicator)
...
plan_result(plan, room, [memory.report()], step_us).describe()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from facetrain.backbones import Backbone
from facetrain.classifier import ShardedClassifier
from facetrain.config import RunConfig
from facetrain.distributed import Communicator, on_first_rank
from facetrain.errors import ConfigError, FacetrainError
from facetrain.memory import MemoryReport, format_bytes, parse_bytes
from facetrain.planning.plan_file import PlanFile, plan_content, plan_from, read_plan
from facetrain.planning.problem import IMAGE_CHANNELS, measured_problem
from facetrain.planning.result import PlanResult
from facetrain.planning.step import plan_step
from facetrain.this_cluster import cluster_of, measure_rank
from memopt.errors import MemoptError

AUTO = "auto"
_FLOAT_BYTES = 4


def plan_of_run(
    config: RunConfig, num_classes: int, communicator: Communicator, device: torch.device
) -> PlanFile:
    """The plan that `config.plan` names, the same on every rank; every rank calls it.

    Raises:
        FacetrainError: a file that is no plan or one for another run, or nothing fits.
    """
    assert config.plan is not None
    if config.plan == AUTO:
        return _plan_here(config, num_classes, communicator, device)
    path = Path(config.plan)
    plan = on_first_rank(communicator, lambda: read_plan(path))
    if wrong := plan.mismatches(config, num_classes, communicator.world_size):
        raise FacetrainError(
            f"--plan {path} is for another run ({'; '.join(wrong)}): plan this one, or use "
            "--plan auto"
        )
    _check(config, plan)
    return plan


def _plan_here(
    config: RunConfig, num_classes: int, communicator: Communicator, device: torch.device
) -> PlanFile:
    cluster = cluster_of(communicator.all_gather_object(measure_rank(communicator)), device.type)
    memory_bytes = None if config.memory is None else parse_bytes(config.memory)

    def plan() -> PlanFile:
        try:
            problem = measured_problem(
                config, cluster, device, num_classes, memory_bytes=memory_bytes
            )
            return plan_from(plan_content(plan_step(problem, compare=False)), "--plan auto")
        except MemoptError as error:
            raise FacetrainError(f"--plan auto: {error}") from error

    made = on_first_rank(communicator, plan)
    _check(config, made)
    return made


def _check(config: RunConfig, plan: PlanFile) -> None:
    # As if its settings were the user's; a user's own beside a plan are refused.
    if problems := replace(plan.applied(config), plan=None, memory=None).problems():
        raise ConfigError([f"--plan {config.plan}: {problem}" for problem in problems])


@dataclass(frozen=True)
class Room:
    """What a plan's memory leaves for a step on this rank.

    Attributes:
        resting_bytes: weights, optimizer state, buffers, class centers, the batch; as they are,
            not as they were predicted.
        gradient_bytes: of the centers' gradient, where it is whole: from the loss to the step.
        budget_bytes: for the backbone's pass and the rest of the head; None: it cannot be held.
        loss_bytes: of that, the head's.
    """

    resting_bytes: int
    gradient_bytes: int
    budget_bytes: int | None
    loss_bytes: int


def room_for_backbone(
    plan: PlanFile,
    config: RunConfig,
    backbone: Backbone,
    head: ShardedClassifier,
    communicator: Communicator,
) -> Room:
    """Bytes that the step may take beside what rests.

    Raises:
        FacetrainError: what rests takes all of it.
    """
    optim, world_size = config.optim, communicator.world_size
    weights = sum(parameter.nbytes for parameter in backbone.parameters())
    trained = sum(
        parameter.nbytes for parameter in backbone.parameters() if parameter.requires_grad
    )
    states = 2 if optim.optimizer == "adamw" else int(optim.momentum > 0)
    state_share = world_size if optim.zero_stage >= 1 else 1
    weight_share = world_size if optim.zero_stage >= 2 else 1
    buffers = sum(buffer.nbytes for buffer in backbone.buffers())
    rows = -(-optim.largest_micro_batch // world_size)
    images = rows * IMAGE_CHANNELS * backbone.image_size**2
    center_state = (
        0
        if head.optimizer is None
        else sum(tensor.nbytes for tensor in head.optimizer.state.values())
    )
    resting = (
        math.ceil(weights / weight_share)
        + math.ceil(states * trained / state_share)
        + 2 * buffers  # a copy, to undo a bad step
        + (1 + _FLOAT_BYTES) * images
        + head.centers.nbytes
        + center_state
    )
    schedule = head.schedule(optim.largest_micro_batch)
    # A whole gradient of the centers stays until the step.
    whole = 0 if head.step_in_backward else head.centers.nbytes
    memory_bytes = plan.problem["memory_bytes"]
    budget = memory_bytes - resting - whole
    if budget <= 0:
        raise FacetrainError(
            f"--plan {config.plan}: weights, optimizer state and class centers take "
            f"{format_bytes(resting)}, and the plan is for {format_bytes(memory_bytes)}"
        )
    # Plans hold passes of whole weights: with stages 2 and 3 nothing is dropped.
    held = budget if optim.zero_stage < 2 else None
    return Room(resting, whole, held, max(0, schedule.transient_bytes - whole))


def plan_result(
    plan: PlanFile, room: Room, reports: Sequence[MemoryReport], measured_step_us: float
) -> PlanResult:
    """The comparison at the end of a run.

    Args:
        reports: of each rank, of which the one with the highest peak counts.
        measured_step_us: 0 where no step was measured.
    """
    report = max(reports, key=lambda one: one.measured_peak_bytes or 0)
    predicted = plan.peak_bytes
    if report.predicted_peak_bytes is not None:
        # Operator by operator, of what this run really drops.
        predicted = room.resting_bytes + room.gradient_bytes + report.predicted_peak_bytes
    measured = report.measured_peak_bytes
    return PlanResult(
        plan.problem["memory_bytes"],
        predicted,
        None if measured is None else room.resting_bytes + measured,
        plan.step_us,
        measured_step_us or None,
    )
