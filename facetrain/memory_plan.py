"""What a backbone's step takes under every budget, without training: `plan_backbone`.

Traced under fake tensors, so any batch size can be asked for on any machine; only the time of each
distinct operator is measured, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from facetrain.backbones import Backbone
from facetrain.memory import MemoryManager, MemoryReport
from memopt.batch_size import BatchScaling, fits_planned
from memopt.capture import CostTable
from memopt.controlled import controlled
from memopt.errors import BudgetTooSmallError
from memopt.execute import find_splits
from memopt.graph import OpGraph
from memopt.placement import place
from memopt.plan import Plan, make_plan, make_plans, trace, with_costs
from memopt.planned_lifetimes import planned_lifetimes
from memopt.schedule import Schedule
from memopt.simulate import simulate

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_NUM_LISTED = 12
_TRACED_BATCH = 8
_ALIGNMENT_BYTES = 512  # of CUDA's allocator in PyTorch


@dataclass(frozen=True)
class CurvePoint:
    """A budget and what it costs.

    Attributes:
        budget_bytes: asked for.
        peak_bytes: planned.
        overhead: recomputation as a share of the plain step's time.
        num_dropped: tensors that are dropped and recomputed.
    """

    budget_bytes: int
    peak_bytes: int
    overhead: float
    num_dropped: int


@dataclass(frozen=True)
class Dropped:
    """A kind of tensor that a plan drops.

    Attributes:
        operator: what makes it.
        count: how many.
        num_bytes: of all of them.
        recompute_us: time to make each once more, its own operator alone.
    """

    operator: str
    count: int
    num_bytes: int
    recompute_us: float


@dataclass(frozen=True)
class BackbonePlan:
    """What `plan_backbone` found.

    Attributes:
        num_rows: of the batch.
        plain_peak_bytes: without a budget.
        least_bytes: the least budget that a plan was found for.
        step_us: time of the plain step.
        points: from the plain peak down to the least budget.
        chosen: the plan for the budget asked for.
        plain_memory_bytes, memory_bytes: while each operator of the step runs, without a budget
            and under the chosen plan; None without one.
        placed_bytes: height of one range of addresses with all tensors of the chosen plan in it.
        backward_from: number of the first operator of backward.
        dropped: by the chosen plan, most bytes first.
        largest_batch: rows that the budget holds, within 2 %, and rows that fit without a plan.
    """

    num_rows: int
    plain_peak_bytes: int
    least_bytes: int
    step_us: float
    points: tuple[CurvePoint, ...]
    chosen: CurvePoint | None
    plain_memory_bytes: np.ndarray
    memory_bytes: np.ndarray | None
    placed_bytes: int | None
    backward_from: int
    dropped: tuple[Dropped, ...]
    largest_batch: tuple[int, int] | None


def plan_backbone(
    backbone: Backbone,
    num_rows: int,
    budget_bytes: int | None,
    *,
    autocast_dtype: torch.dtype | None = None,
    accumulates: bool = False,
) -> BackbonePlan:
    """Plans a backbone's step at a batch under every tenth of its plain peak, and a budget.

    Raises:
        BudgetTooSmallError: below the least budget, which is named.
        MemoptError: the backbone cannot be traced.
    """
    device = next(backbone.parameters()).device
    costs = CostTable()

    def images(rows: int) -> torch.Tensor:
        size = backbone.image_size
        empty = torch.empty((rows, 3, size, size), device=device)
        return empty.contiguous(memory_format=torch.channels_last)

    def traced(rows: int) -> OpGraph:
        with torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None):
            recording = trace(backbone, (images(rows),), accumulates=accumulates)
        return controlled(recording, find_splits(recording, None)).graph

    with torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None):
        recording = with_costs(trace(backbone, (images(num_rows),), accumulates=accumulates), costs)
    held_bytes = sum(p.nbytes for p in backbone.parameters() if p.requires_grad and accumulates)

    def plan(size_bytes: int) -> Plan:
        return make_plan(recording, size_bytes, held_bytes=held_bytes, costs=costs)

    plain = plan(1 << 62)
    try:
        plan(1)
    except BudgetTooSmallError as error:
        least_bytes = error.least_bytes
    chosen = None if budget_bytes is None else plan(budget_bytes)
    budgets = {int(share * plain.plain_peak_bytes) for share in _SHARES} | {least_bytes}
    points = [_point(plain.plain_peak_bytes, plain)]
    points += [
        _point(size, made)
        for size, made in make_plans(recording, budgets, held_bytes=held_bytes, costs=costs)
    ]
    largest = None
    if budget_bytes is not None:
        scaling = BatchScaling(traced, _TRACED_BATCH)
        room = budget_bytes - held_bytes
        largest = (
            scaling.largest(lambda graph, _: fits_planned(graph, room)),
            scaling.largest(lambda graph, _: graph.plain_peak_bytes() <= room),
        )
    operators = plain.step.graph.operators
    return BackbonePlan(
        num_rows=num_rows,
        plain_peak_bytes=plain.plain_peak_bytes,
        least_bytes=least_bytes,
        step_us=plain.plain_us,
        points=tuple(points),
        chosen=None if budget_bytes is None or chosen is None else _point(budget_bytes, chosen),
        plain_memory_bytes=simulate(plain.step.graph, Schedule()).memory_bytes + held_bytes,
        memory_bytes=None
        if chosen is None
        else simulate(chosen.step.graph, chosen.schedule).memory_bytes + held_bytes,
        placed_bytes=None if chosen is None else _placed_bytes(chosen),
        backward_from=next(n for n, operator in enumerate(operators) if operator.backward),
        dropped=() if chosen is None else tuple(_dropped(chosen)),
        largest_batch=largest,
    )


def run_step(
    backbone: Backbone,
    num_rows: int,
    budget_bytes: int,
    *,
    autocast_dtype: torch.dtype | None = None,
    accumulates: bool = False,
) -> MemoryReport:
    """Runs real steps on noise under a budget: the measured peak beside the planned one.

    Raises:
        MemoptError: as `plan_backbone`.
    """
    device = next(backbone.parameters()).device
    size = backbone.image_size
    images = torch.randn((num_rows, 3, size, size), device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    manager = MemoryManager.fit(
        backbone, images, budget_bytes, autocast_dtype=autocast_dtype, accumulates=accumulates
    )
    for is_measured in (False, True):
        backbone.zero_grad(set_to_none=True)
        passes = 2 if accumulates else 1
        if not is_measured:
            manager.forward(images).sum().backward()
            continue
        with manager.measure():
            for _ in range(passes):
                embeddings = manager.forward(images)
                embeddings.backward(torch.ones_like(embeddings))
    return manager.report()


def _placed_bytes(plan: Plan) -> int:
    lifetimes = planned_lifetimes(plan.step.graph, plan.schedule)
    return place(lifetimes, alignment_bytes=_ALIGNMENT_BYTES).height_bytes


def _point(budget_bytes: int, plan: Plan) -> CurvePoint:
    return CurvePoint(budget_bytes, plan.peak_bytes, plan.overhead, len(plan.schedule.drops))


def _dropped(plan: Plan) -> Sequence[Dropped]:
    graph = plan.step.graph
    makers = graph.maker()
    found: dict[tuple[str, int], list[float]] = {}
    for gap in plan.schedule.drops:
        maker = makers[gap.value]
        assert maker is not None
        operator = graph.operators[maker]
        size_bytes = graph.storages[graph.values[gap.value].storage].size_bytes
        found.setdefault((operator.name, size_bytes), []).append(operator.cost_us)
    listed = [
        Dropped(name, len(costs), size * len(costs), sum(costs) / len(costs))
        for (name, size), costs in found.items()
    ]
    return sorted(listed, key=lambda one: -one.num_bytes)[:_NUM_LISTED]
