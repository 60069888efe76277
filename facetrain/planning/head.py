"""Ways to run the classification layer, as options of a chain's last stage.

Over which devices the classes are cut (all, groups of them, none, or cut and gathered as ZeRO-3
does), the way through the logits (row chunks or class tiles, and how many), and how momentum is
stored. Bytes and the kernel's work are classifier/schedule.py's, traffic is step_traffic.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from facetrain.classifier.schedule import (
    SCHEDULES,
    Schedule,
    Speeds,
    Work,
    chunk_sizes,
    evaluate,
)
from facetrain.head import build_center_optimizer, needs_whole_gradient
from facetrain.margins import build_margin
from facetrain.planning.problem import Problem
from facetrain.step_traffic import head_traffic, trainer_traffic
from memopt.partition.chain import Option
from memopt.partition.collectives import Group, Traffic
from memopt.partition.strategies import Setting

_FLOAT_BYTES = 4
_EAGER_V100_SECONDS, _EAGER_V100_BYTES_PER_S = 0.7e-9, 0.9e12
# Fitted by benchmarks/partition_validation.py; about ten kernel launches of 5 us.
_CPU_SWEEP_S, _GPU_SWEEP_S = 0.45e-3, 50e-6
_EAGER_BYTES = 27
"""Of a logit, in eager margin softmax: a fit of arcface_torch's speed table (8 x V100-32GB)."""


def head_options(problem: Problem, setting: Setting, micro_batches: int) -> tuple[Option, ...]:
    """Every way to run the head of a problem, with these micro-batches."""
    head = problem.config.head
    states = ["fp32"] if head.center_momentum == "fp32" else ["bf16"]
    if "momentum" in problem.may_change and problem.state_ratio == 1.0:
        states = ["fp32", "bf16"]
    options: list[Option] = []
    for momentum in states:
        for group in _group_sizes(problem, setting):
            options += _grouped(problem, setting, micro_batches, group, momentum)
    return (*options, *_gathered(problem, setting, micro_batches))


def _group_sizes(problem: Problem, setting: Setting) -> list[int]:
    """Devices that share one copy of the centers: divisors of all, in powers of two or nodes."""
    ranks, node = problem.num_ranks, setting.cluster.devices_per_node
    sizes = {1, ranks} | {node if ranks % node == 0 else ranks}
    # Statistics of the whole batch, and classes drawn for it, are not kept equal over copies.
    if _needs_all(problem):
        return [ranks]
    sizes |= {2**power for power in range(ranks.bit_length()) if ranks % 2**power == 0}
    return sorted(sizes)


def _needs_all(problem: Problem) -> bool:
    head = problem.config.head
    margin = build_margin(head.margin, head.margin_arguments())
    has_state = any(True for _ in (*margin.buffers(), *margin.parameters()))
    return has_state or head.sample_rate < 1


def _grouped(
    problem: Problem, setting: Setting, micro_batches: int, group: int, momentum: str
) -> Iterator[Option]:
    """Classes cut over `group` devices, in as many copies as that leaves."""
    ranks = problem.num_ranks
    whole = group < ranks or micro_batches > 1 or needs_whole_gradient(problem.config)
    rows = problem.rows_of_pass(micro_batches) * group
    work = _work(problem, rows, -(-problem.num_classes // group), whole=whole)
    resting = _resting_bytes(problem, work.num_classes, momentum)
    gradient = work.num_classes * work.center_bytes * whole
    for schedule in _schedules(problem, work):
        traffic = _exchange(problem, setting, micro_batches, group, schedule.chunk_rows)
        settings = {
            "head_ranks": group if group < ranks else 0,
            "head_schedule": schedule.kind,
            "chunk_rows": schedule.chunk_rows,
            "tile_classes": schedule.tile_classes,
            "center_momentum": momentum,
        }
        option = Option(
            "grouped",
            _detail(schedule, rows, group, momentum),
            micro_batches * 1e6 * schedule.seconds
            + sum(item.us for item in traffic)
            + setting.optimizer_us(resting / 2) * whole,
            resting_bytes=resting,
            kept_bytes=0,
            work_bytes=schedule.transient_bytes,
            gradient_bytes=gradient,
            traffic=traffic,
            settings=settings,
        )
        # Of one device, or one node, the same way goes by several names.
        names = {
            "replicated": group == 1,
            "node": group == min(ranks, setting.cluster.devices_per_node),
            "sharded": group == ranks,
        }
        fitting = [name for name, is_it in names.items() if is_it]
        yield from (replace(option, strategy=name) for name in fitting or ["grouped"])


def _gathered(problem: Problem, setting: Setting, micro_batches: int) -> Iterator[Option]:
    """Centers cut over all devices and gathered whole before use, as ZeRO-3 does."""
    ranks, rows = problem.num_ranks, problem.rows_of_pass(micro_batches)
    work = _work(problem, rows, problem.num_classes, whole=True)
    center_bytes = work.num_classes * work.center_bytes
    everyone = setting.everyone
    gathered = setting.collectives.all_gather(center_bytes, everyone)
    scattered = setting.collectives.reduce_scatter(center_bytes, everyone)
    momentum = problem.config.head.center_momentum
    resting = _resting_bytes(problem, -(-problem.num_classes // ranks), momentum)
    traffic = (gathered, gathered, scattered) * micro_batches
    for schedule in _schedules(problem, work):
        yield Option(
            "gathered",
            _detail(schedule, rows, 1, momentum),
            micro_batches * 1e6 * schedule.seconds + sum(item.us for item in traffic),
            resting_bytes=resting,
            kept_bytes=0,
            work_bytes=schedule.transient_bytes + center_bytes,
            gradient_bytes=center_bytes // ranks,
            traffic=traffic,
            is_executable=False,
        )


def eager_option(problem: Problem, setting: Setting, micro_batches: int) -> Option:
    """Classes cut over all devices, margin softmax by eager operators, as arcface_torch does.

    Not among the options of a search: another kernel, for the gain of ours.
    """
    ranks = problem.num_ranks
    rows = problem.rows_of_pass(micro_batches) * ranks
    classes = -(-problem.num_classes // ranks)
    work = _work(problem, rows, classes, whole=True)
    logits = rows * work.num_classes
    bandwidth = problem.cluster.device.memory_bytes_per_s
    seconds = logits * _EAGER_V100_SECONDS * _EAGER_V100_BYTES_PER_S / bandwidth
    traffic = _exchange(problem, setting, micro_batches, ranks, 0)
    resting = _resting_bytes(problem, classes, "fp32")
    gradient = classes * work.center_bytes
    return Option(
        "eager",
        "eager logits",
        micro_batches * 1e6 * seconds
        + sum(item.us for item in traffic)
        + setting.optimizer_us(resting / 2),
        resting_bytes=resting,
        kept_bytes=0,
        work_bytes=logits * _EAGER_BYTES + gradient + 3 * _FLOAT_BYTES * rows * work.size,
        gradient_bytes=gradient,
        traffic=traffic,
    )


def _work(problem: Problem, rows: int, classes: int, *, whole: bool) -> Work:
    head, config = problem.config.head, problem.config
    margin = build_margin(head.margin, head.margin_arguments())
    rate = head.sample_rate
    if rate < 1:
        classes = min(classes, round(classes * rate) + rows)
    product = torch.float32 if problem.precision is None else problem.precision
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return Work(
        num_rows=rows,
        num_classes=classes,
        size=config.model.embedding_size,
        centers_per_class=head.sub_centers,
        sampled=rate < 1,
        state_rows=build_center_optimizer(config).state_rows,
        shapes_others=margin.shapes_others,
        whole_gradient=whole,
        device_type="cuda" if problem.on_gpu else "cpu",
        product_dtype=names.get(head.head_precision, product),
        speeds=_speeds(problem),
    )


def _speeds(problem: Problem) -> Speeds:
    device = problem.cluster.device
    rate = device.fp32_per_s if problem.precision is None else device.half_per_s
    sweep_s = _GPU_SWEEP_S if problem.on_gpu else _CPU_SWEEP_S
    return Speeds(rate, device.memory_bytes_per_s, sweep_s)


def _schedules(problem: Problem, work: Work) -> Iterator[Schedule]:
    head = problem.config.head
    for kind in SCHEDULES:
        if head.head_schedule in ("auto", kind):
            sizes = [head.chunk_rows] if head.chunk_rows else chunk_sizes(kind, work.num_rows)
            for size in sizes:
                yield evaluate(work, kind, size, head.tile_classes)


def _resting_bytes(problem: Problem, classes: int, momentum: str) -> int:
    """Centers and their optimizer's state on a device."""
    config = problem.config
    if momentum != config.head.center_momentum:
        config = replace(config, head=replace(config.head, center_momentum=momentum))
    size = config.model.embedding_size
    row = _FLOAT_BYTES * size + build_center_optimizer(config).state_bytes_per_row(size)
    return classes * config.head.sub_centers * row


def _exchange(
    problem: Problem, setting: Setting, micro_batches: int, group: int, chunk_rows: int
) -> tuple[Traffic, ...]:
    """All collectives of the head in a step."""
    config, cluster, ranks = problem.config, setting.cluster, problem.num_ranks
    margin = build_margin(config.head.margin, config.head.margin_arguments())
    groups = {
        "head": Group.of(cluster, group),
        "copies": Group.of(cluster, ranks // group, stride=group),
        "world": setting.everyone,
    }
    exchanges = head_traffic(
        num_rows=problem.rows_of_pass(micro_batches) * ranks,
        size=config.model.embedding_size,
        world_size=ranks,
        num_classes=problem.num_classes,
        head_ranks=group,
        chunk_rows=chunk_rows,
        micro_batches=micro_batches,
        sub_centers=config.head.sub_centers,
        uses_norms=margin.uses_norms,
        shapes_others=margin.shapes_others,
        clips_centers=config.head.max_center_gradient_norm > 0,
    )
    exchanges += trainer_traffic(world_size=ranks, micro_batches=micro_batches)
    found: list[Traffic] = []
    for exchange in exchanges:
        price = getattr(setting.collectives, exchange.name)
        found += [price(exchange.whole_bytes, groups[exchange.group])] * exchange.calls
    return tuple(found)


def _detail(schedule: Schedule, rows: int, group: int, momentum: str) -> str:
    chunks = schedule.num_chunks(rows)
    if schedule.keeps_logits:
        text = "whole logits" if chunks == 1 else f"{chunks} row chunks"
    else:
        text = f"class tiles of {schedule.tile_classes:,}"
    if group > 1:
        text += f", {group} devices a copy"
    return text + (", bf16 momentum" if momentum == "bf16" else "")
