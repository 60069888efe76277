"""The largest batch that trains inside a limit: plain, in sqrt(n) segments, under memopt's plan.

    python benchmarks/max_batch.py --networks resnet50 vit_s --limits 4GiB 12GiB

All of training counts: weights, gradients, SGD's momentum, buffers, the batch, activations, and
what backward makes. Steps are traced under fake tensors and planned, not run, so no size is too
large for the machine; the largest batch is found by bisection, within 2 %. Times of operators are
measured at a small batch and scaled: the overhead is recomputation over the plain step at the same
batch. `--measure SECONDS` also trains a step wherever it should take no longer, in a process of
its own, and gives the counted peak, everything above included, as a share of the limit.

MegTaiChi (Hu et al., ICS 2022) states 5 times the batch of plain training, 2.4 times that of
Sublinear (Chen et al., 2016).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from memopt_networks import NETWORKS
from torch import Tensor

import memopt
from memopt.batch_size import BatchScaling
from memopt.capture import CostTable
from memopt.controlled import controlled
from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.execute.splits import find_splits
from memopt.graph import OpGraph
from memopt.live_bytes import LiveBytes
from memopt.plan import trace
from memopt.planners import PLANNERS, find_planner
from memopt.simulate import simulate
from memopt.units import parse_bytes

PLAIN = "plain"


@dataclass(frozen=True)
class Fit:
    """A batch that fits.

    Attributes:
        batch: its size.
        overhead: recomputation over the plain step.
        seconds: of the step, predicted.
    """

    batch: int
    overhead: float
    seconds: float


class Case:
    """A network's training step, at any batch."""

    def __init__(self, name: str, costs: CostTable, timed_batch: int) -> None:
        self.network = NETWORKS[name]
        self.model = self.network.build()
        sizes = [p.nbytes for p in self.model.parameters()]
        self._fixed_bytes = 2 * sum(sizes) + sum(b.nbytes for b in self.model.buffers())
        self._sample_bytes = self.network.make_batch(1).nbytes

        def trace_at(batch: int) -> OpGraph:
            known = costs if batch == timed_batch else None
            recording = trace(self.model, (self.network.make_batch(batch),), costs=known)
            return controlled(recording, find_splits(recording, known)).graph

        self._scaling = BatchScaling(trace_at, timed_batch)

    def largest(self, system: str, limit_bytes: int, max_overhead: float, start: int) -> Fit | None:
        """The largest batch; None if even `start` does not fit."""
        found: dict[int, Fit] = {}

        def fits(graph: OpGraph, batch: int) -> bool:
            # Weights, their momentum, buffers and the batch are there already.
            budget_bytes = limit_bytes - self._fixed_bytes - batch * self._sample_bytes
            fit = None if budget_bytes <= 0 else plan(graph, batch, system, budget_bytes)
            if fit is None or fit.overhead > max_overhead:
                return False
            found[batch] = fit
            return True

        return found.get(self._scaling.largest(fits, at_least=start))


def plan(graph: OpGraph, batch: int, system: str, budget_bytes: int) -> Fit | None:
    """None if the step does not fit."""
    plain_us = graph.total_cost_us()
    if system == PLAIN:
        fits = graph.plain_peak_bytes() <= budget_bytes
        return Fit(batch, 0.0, plain_us / 1e6) if fits else None
    try:
        recompute_us = simulate(graph, find_planner(system)(graph, budget_bytes)).recompute_us
    except BudgetTooSmallError:
        return None
    return Fit(batch, recompute_us / plain_us, (plain_us + recompute_us) / 1e6)


def run_step(name: str, system: str, batch: int, limit_bytes: int) -> int:
    """Trains one step for real; peak of all that counts, in bytes."""
    case_model, images = NETWORKS[name].build(), NETWORKS[name].make_batch(batch)
    optimizer = torch.optim.SGD(case_model.parameters(), 0.0, momentum=0.9)
    for parameter in case_model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes the momentum
    optimizer.zero_grad(set_to_none=True)
    momenta = [value for state in optimizer.state.values() for value in state.values()]
    resting = [*case_model.parameters(), *case_model.buffers(), images]
    resting += [momentum for momentum in momenta if isinstance(momentum, Tensor)]
    resting_bytes = sum(tensor.nbytes for tensor in resting)
    if system != PLAIN:
        held = memopt.budget(case_model, limit_bytes - resting_bytes, planner=system)
        held.plan(images)
    with LiveBytes() as live:
        case_model(images).square().mean().backward()
        optimizer.step()
    return resting_bytes + live.peak_bytes


def measured_share(name: str, system: str, fit: Fit, limit_bytes: int) -> float:
    """Peak of a real step as a share of the limit, in a new process."""
    command = [sys.executable, __file__, "--run", name, system, str(fit.batch), str(limit_bytes)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1]) / limit_bytes


def row(case: Case, name: str, limit: str, options: argparse.Namespace) -> str:
    """A line of the table."""
    limit_bytes = parse_bytes(limit)
    cells: list[str] = [f"{name}, {limit}"]
    batches: list[int] = []
    for title, (system, max_overhead) in columns(options).items():
        start = batches[0] if batches and batches[0] else 2  # BatchNorm needs two
        found = case.largest(system, limit_bytes, max_overhead, start)
        batches.append(found.batch if found else 0)
        cell = f"{found.batch}" if found else "-"
        if found and system != PLAIN:
            cell += f" (+{found.overhead:.0%})"
        if found and batches[0] and system != PLAIN:
            cell += f", {found.batch / batches[0]:.1f}x"
        if found and found.seconds <= options.measure:
            cell += f", measured {measured_share(name, system, found, limit_bytes):.1%}"
        cells.append(cell)
        print(f"{name}, {limit}, {title}: {cell}", file=sys.stderr, flush=True)
    return f"| {' | '.join(cells)} |"


def columns(options: argparse.Namespace) -> dict[str, tuple[str, float]]:
    """System and largest overhead, by title."""
    found = {system: (system, math.inf) for system in (PLAIN, *options.planners)}
    for overhead in options.overheads:
        found[f"offline, at most +{overhead:.0%}"] = ("offline", overhead)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ["iresnet50", "iresnet100", "resnet50", "vit_s", "densenet", "unet"]
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=names)
    parser.add_argument("--limits", nargs="+", default=["4GiB", "12GiB"])
    parser.add_argument(
        "--planners", nargs="*", choices=sorted(PLANNERS), default=["sublinear", "offline"]
    )
    parser.add_argument("--overheads", type=float, nargs="*", default=[0.3])
    parser.add_argument("--timed-batch", type=int, default=8)
    parser.add_argument("--measure", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.run:
        name, system, batch, limit_bytes = options.run
        print(run_step(name, system, int(batch), int(limit_bytes)))
        return 0
    heads = ["", *columns(options)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|", flush=True)
    costs = CostTable()
    for name in options.networks:
        try:
            case = Case(name, costs, options.timed_batch)
        except MemoptError as error:
            print(f"| {name} | {error}{' |' * (len(heads) - 1)}", flush=True)
            continue
        for limit in options.limits:
            print(row(case, name, limit, options), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
