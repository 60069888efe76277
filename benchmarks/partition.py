"""The planned step beside the empirical best on real processes, under a budget that binds.

    python benchmarks/partition.py --num-processes 2 --backbone iresnet50 --ids 100000 --rows 8

The budget is a share of what the plain step takes (--share), all tensors of a process counted. The
plan is what `facetrain train --plan auto` makes for it; the empirical best is the fastest of the
comparison strategies that fits, here always a data-parallel backbone whose blocks are checkpointed
(torch.utils.checkpoint), a class-sharded head, and its own best way through the logits. Both train
the same weights on the same noise, step by step in turn; the table has medians, peaks counted
operator by operator, and what the planner predicted of both. One thread a process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from facetrain.backbones import Backbone
from facetrain.classifier import ShardedClassifier
from facetrain.config import HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.distributed import Communicator, World, connect, on_first_rank
from facetrain.distributed.gradients import GradientSum
from facetrain.distributed.launch import launch
from facetrain.head import build_head
from facetrain.memory import MemoryManager, format_bytes
from facetrain.optim import build_optimizer
from facetrain.planning.execution import room_for_backbone
from facetrain.planning.plan_file import PlanFile, plan_content, plan_from
from facetrain.planning.problem import measured_problem
from facetrain.planning.step import Planner, StepPlan
from facetrain.run import build_initial_backbone, plan_memory
from facetrain.this_cluster import cluster_of, measure_rank
from memopt.live_bytes import LiveBytes
from memopt.partition.chain import outcome
from memopt.partition.search import Found

PLAN, BEST, PLAIN = "plan", "empirical best", "plain, over the budget"


@dataclass
class System:
    """One way to run a step.

    Attributes:
        embed: the backbone's forward pass.
        head: its own, with centers of its own.
        resting_bytes: weights and states of a process.
        predicted: of the planner, in ms and bytes.
    """

    embed: Callable[[Tensor], Tensor]
    head: ShardedClassifier
    resting_bytes: int
    predicted: tuple[float, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--backbone", default="iresnet50")
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=8, help="images of a process")
    parser.add_argument("--share", type=float, default=0.8, help="of the plain step's peak")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    world = World.from_environment()
    if world.world_size == 1 and options.num_processes > 1:
        return launch([sys.executable, *sys.argv], options.num_processes)
    torch.set_num_threads(1)
    communicator = connect(world, torch.device("cpu"), "torch", 600.0)
    config = RunConfig(
        model=ModelConfig(backbone=options.backbone),
        head=HeadConfig(margin="arcface"),
        optim=OptimConfig(global_batch_size=options.rows * communicator.world_size),
    )
    run(config, options.ids, options.share, options.rounds, communicator, world)
    communicator.close()
    return 0


def run(
    config: RunConfig,
    num_classes: int,
    share: float,
    rounds: int,
    communicator: Communicator,
    world: World,
) -> None:
    """Plan, measure in turn, and print the table on the first rank."""
    cpu = torch.device("cpu")
    cluster = cluster_of(communicator.all_gather_object(measure_rank(communicator)), "cpu")
    first = communicator.rank == 0

    def plan_all() -> tuple[dict[str, PlanFile], int]:
        problem = measured_problem(config, cluster, cpu, num_classes)
        planner = Planner(problem)
        plain = planner.compare()["GShard-like"]
        assert isinstance(plain, Found), "the plain step does not fit this machine"
        budget = int(share * plain.outcome.peak_bytes)
        tight = Planner(replace(problem, memory_bytes=budget), planner.backbone)
        found, family, micro_batches = tight.best()
        rows = tight.compare()
        fitting = {name: row for name, row in rows.items() if isinstance(row, Found)}
        print(f"budget {format_bytes(budget)}, {share:.0%} of the plain step's predicted peak")
        for name, row in rows.items():
            text = "does not fit"
            if isinstance(row, Found):
                text = f"{row.outcome.time_us / 1e3:,.0f} ms predicted"
            print(f"  {name}: {text}")
        best = min(fitting, key=lambda name: fitting[name].outcome.time_us)
        assert best == BEST, f"{best} is the best of the comparison strategies here"

        def file(one: Found, kind: str) -> PlanFile:
            made = StepPlan(tight.problem, one, kind, micro_batches, tight.chain(1), {})
            return plan_from(plan_content(made), kind)

        files = {PLAN: file(found, family), BEST: file(fitting[BEST], BEST)}
        files[PLAIN] = file(Found(plain.choice, outcome(planner.chain(1), plain.choice)), PLAIN)
        return files, budget

    files, budget = on_first_rank(communicator, plan_all)
    backbone = build_initial_backbone(config, cpu)
    systems = {
        name: _system(name, plan, config, num_classes, backbone, communicator, world)
        for name, plan in files.items()
    }
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    optimizer = build_optimizer(parameters, config.optim)
    gradients = GradientSum(parameters, communicator)
    rows = config.optim.global_batch_size // communicator.world_size
    torch.manual_seed(communicator.rank)
    images = torch.randn(rows, 3, 112, 112).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(num_classes, (rows,))

    def step(system: System) -> None:
        optimizer.zero_grad(set_to_none=True)
        embeddings = system.embed(images)
        leaf = embeddings.detach().requires_grad_()
        system.head(leaf, labels).backward()
        with gradients:
            embeddings.backward(leaf.grad)
        system.head.step()
        optimizer.step()

    peaks = {}
    for name, system in systems.items():
        step(system)
        optimizer.zero_grad(set_to_none=True)
        with LiveBytes() as live:
            step(system)
        peaks[name] = max(communicator.all_gather_object(live.peak_bytes)) + system.resting_bytes
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            communicator.barrier()
            started = time.perf_counter()
            step(system)
            communicator.barrier()
            times[name].append(1e3 * (time.perf_counter() - started))
    if first:
        _print(systems, times, peaks, budget)


def _system(
    name: str,
    plan: PlanFile,
    config: RunConfig,
    num_classes: int,
    backbone: Backbone,
    communicator: Communicator,
    world: World,
) -> System:
    applied = plan.applied(config)
    head = build_head(applied, num_classes, None, communicator, world)
    assert head.optimizer is not None
    head.optimizer.lr = 0.01
    room = room_for_backbone(plan, applied, backbone, head, communicator)

    def checkpointed(images: Tensor) -> Tensor:
        out = images
        for number, segment in enumerate(backbone.segments()):
            # An input without a gradient has nothing to come back to.
            out = (
                checkpoint(segment.forward, out, use_reentrant=False)
                if number
                else (segment.forward(out))
            )
        return out

    embed: Callable[[Tensor], Tensor] = checkpointed
    predicted_bytes = plan.peak_bytes
    if name != BEST:
        manager = MemoryManager.fit(backbone, torch.empty(0), None)
        if name == PLAN:
            manager = plan_memory(applied, backbone, None, communicator, room)
            planned = manager.report().predicted_peak_bytes
            assert planned is not None
            predicted_bytes = room.resting_bytes + room.gradient_bytes + planned
        embed = manager.forward if name == PLAN else _plain(backbone)
    return System(embed, head, room.resting_bytes, (plan.step_us / 1e3, predicted_bytes))


def _plain(backbone: Backbone) -> Callable[[Tensor], Tensor]:
    """The forward pass without the hooks of a plan."""

    def forward(images: Tensor) -> Tensor:
        for segment in backbone.segments():
            images = segment.forward(images)
        return images

    return forward


def _print(
    systems: dict[str, System],
    times: dict[str, list[float]],
    peaks: dict[str, int],
    budget: int,
) -> None:
    print(f"{'':24} {'ms/step':>9} {'of plan':>8} {'predicted':>10} {'peak':>11} {'predicted':>11}")
    plan_ms = statistics.median(times[PLAN])
    for name, system in systems.items():
        ms = statistics.median(times[name])
        ratio = statistics.median(
            one / own for one, own in zip(times[name], times[PLAN], strict=True)
        )
        predicted_ms, predicted_bytes = system.predicted
        print(
            f"{name:24} {ms:9,.0f} {ratio:7.2f}x {predicted_ms:10,.0f} "
            f"{format_bytes(peaks[name]):>11} {format_bytes(predicted_bytes):>11}"
            f"{'' if peaks[name] <= budget else '  over the budget'}"
        )
    print(
        f"plan: {plan_ms:,.0f} ms; spread of its steps {min(times[PLAN]):,.0f}.."
        f"{max(times[PLAN]):,.0f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
