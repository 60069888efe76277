"""The class-sharded head beside the eager formula and arcface_torch's PartialFC_V2, in one run.

    python benchmarks/classifier.py --arcface-torch PATH/recognition/arcface_torch

For each number of identities and of gloo processes, one table: milliseconds per step (forward,
backward, SGD with momentum; median of interleaved steps, of rank 0), its ratio to PartialFC_V2's,
peak bytes of tensors above the resting state (centers and momentum; counted operator by operator in
a step of its own, so a gradient of the centers is part of it), the same ratio, and the bytes a rank
sends. One thread a process. All of ours work on one set of centers, all of theirs on another.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.classifier.products import Products
from facetrain.classifier.sampling import ClassSampler
from facetrain.distributed import Communicator, CountedCommunicator, World, connect
from facetrain.distributed.launch import launch
from facetrain.margins import CosFace
from memopt.live_bytes import LiveBytes

SCALE, MARGIN, LR, MOMENTUM = 64.0, 0.4, 0.1, 0.9
PEER = "PartialFC_V2"


@dataclass(frozen=True)
class System:
    """One way to do the work.

    Attributes:
        step: forward, backward and update, given a leaf of embeddings and labels.
        peer: name of the system that it is compared with.
        sent_bytes: by one rank since the last call.
    """

    step: Callable[[Tensor, Tensor], None]
    peer: str
    sent_bytes: Callable[[], int]


class CountedDistributed:
    """Stands in for `torch.distributed` in their module, and counts by the same ring formulas."""

    def __init__(self) -> None:
        self.sent = 0.0
        self.share = (dist.get_world_size() - 1) / dist.get_world_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_gather(self, parts: list[Tensor], own: Tensor) -> None:
        self.sent += self.share * sum(part.nbytes for part in parts)
        dist.all_gather(parts, own)

    def all_reduce(self, values: Tensor, op: Any) -> None:
        self.sent += 2 * self.share * values.nbytes
        dist.all_reduce(values, op)

    def reduce(self, values: Tensor, target: int, op: Any, async_op: bool) -> Any:
        self.sent += self.share * values.nbytes
        return dist.reduce(values, target, op, async_op=async_op)


def ours(
    options: argparse.Namespace, num_classes: int, communicator: Communicator
) -> dict[str, System]:
    """Our head's schedules, precisions and rates, on one set of centers."""
    counted = CountedCommunicator(communicator)
    head = ShardedClassifier(
        num_classes,
        options.embedding_size,
        CosFace(MARGIN),
        counted,
        scale=SCALE,
        optimizer=CenterSGD(LR, MOMENTUM, weight_decay=0.0),
    )

    def system(rate: float, schedule: str, precision: str) -> System:
        wish = ScheduleWish(schedule)
        products = Products(torch.float32 if precision == "fp32" else torch.bfloat16)
        sampler = None if rate == 1 else ClassSampler(rate, num_classes, seed=0)

        def step(embeddings: Tensor, labels: Tensor) -> None:
            counted.reset()
            head.schedule_wish, head.products, head.sampler = wish, products, sampler
            head(embeddings, labels, counts=[len(labels)] * counted.world_size).backward()

        peer = PEER if rate == 1 else f"{PEER}, r = {rate:g}"
        return System(step, peer, lambda: sum(counted.sent_bytes.values()))

    found = {}
    for rate, schedule, precision in itertools.product(
        options.rates, ("row_chunks", "class_tiles"), options.precisions
    ):
        name = f"facetrain {schedule}, {precision}" + (f", r = {rate:g}" if rate < 1 else "")
        found[name] = system(rate, schedule, precision)
    return found


def eager(options: argparse.Namespace, num_classes: int) -> System:
    """The same loss by autograd, every logit in memory; for one process."""
    centers = nn.Parameter(torch.randn(num_classes, options.embedding_size) * 0.01)
    optimizer = torch.optim.SGD([centers], LR, momentum=MOMENTUM, fused=True)

    def step(embeddings: Tensor, labels: Tensor) -> None:
        cosines = functional.normalize(embeddings) @ functional.normalize(centers).T
        margin = torch.zeros_like(cosines).scatter_(1, labels[:, None], MARGIN)
        functional.cross_entropy(SCALE * (cosines - margin), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return System(step, PEER, lambda: 0)


def partial_fc(options: argparse.Namespace, num_classes: int) -> dict[str, System]:
    """arcface_torch's head, on the CPU: it asks for a GPU by name, which is answered here."""
    Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    sys.path.insert(0, str(options.arcface_torch))
    losses, module = (importlib.import_module(n) for n in ("losses", "partial_fc_v2"))
    if not dist.is_initialized():  # ours needs none in a world of one
        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    counted = module.distributed = CountedDistributed()
    weight: nn.Parameter | None = None
    optimizer: torch.optim.Optimizer | None = None
    found = {}
    for rate in options.rates:
        margin = losses.CombinedMarginLoss(SCALE, 1.0, 0.0, MARGIN)
        head = module.PartialFC_V2(margin, options.embedding_size, num_classes, rate)
        if weight is None or optimizer is None:
            weight = head.weight
            optimizer = torch.optim.SGD([weight], LR, momentum=MOMENTUM, fused=True)
        head.weight = weight

        def step(
            embeddings: Tensor,
            labels: Tensor,
            head: nn.Module = head,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> None:
            counted.sent = 0.0
            head(embeddings, labels.clone()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        name = PEER if rate == 1 else f"{PEER}, r = {rate:g}"
        found[name] = System(step, name, lambda: round(counted.sent))
    return found


def measure(
    systems: dict[str, System], options: argparse.Namespace, num_classes: int, steps: int
) -> dict[str, tuple[float, int, int]]:
    """Median seconds, peak bytes and sent bytes of each; rank 0's."""
    world = World.from_environment()
    rows = options.rows // world.world_size
    generator = torch.Generator().manual_seed(world.rank)
    embeddings = torch.randn((rows, options.embedding_size), generator=generator)
    labels = torch.randint(num_classes, (rows,), generator=generator)

    def step(name: str) -> None:
        systems[name].step(embeddings.clone().requires_grad_(), labels)

    peaks, sent = {}, {}
    for name, system in systems.items():
        step(name)  # makes the momentum
        with LiveBytes() as live:
            step(name)
        peaks[name], sent[name] = live.peak_bytes, system.sent_bytes()
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(steps):
        for name in systems:
            if world.world_size > 1:
                dist.barrier()
            start = time.perf_counter()
            step(name)
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name]), peaks[name], sent[name]) for name in systems}


def print_table(
    systems: dict[str, System], found: dict[str, tuple[float, int, int]], title: str
) -> None:
    print(f"\n{title}")
    print(f"{'':<40}{'ms':>8}{'ratio':>8}{'peak MiB':>12}{'ratio':>8}{'sent KiB':>11}")
    for name, (seconds, peak, sent) in found.items():
        peer = found.get(systems[name].peer)
        ratios = [f"{seconds / peer[0]:.2f}", f"1/{peer[1] / peak:.1f}"] if peer else ["", ""]
        print(
            f"{name:<40}{1e3 * seconds:>8,.0f}{ratios[0]:>8}{peak / 2**20:>12,.1f}{ratios[1]:>8}"
            f"{sent / 1024:>11,.0f}",
            flush=True,
        )


def run_rank(options: argparse.Namespace) -> None:
    """All sizes, in this world."""
    communicator = connect(World.from_environment(), torch.device("cpu"), "torch", timeout_s=600)
    torch.set_num_threads(1)
    for num_classes in options.classes:
        systems = ours(options, num_classes, communicator)
        if communicator.world_size == 1:
            systems["eager formula, fp32"] = eager(options, num_classes)
        if options.arcface_torch:
            systems.update(partial_fc(options, num_classes))
        steps = options.steps or max(3, min(20, 1_000_000 // num_classes))
        found = measure(systems, options, num_classes, steps)
        if communicator.rank == 0:
            title = (
                f"{num_classes:,} identities, {options.rows} rows, D = {options.embedding_size}, "
                f"{communicator.world_size} process{'es' * (communicator.world_size > 1)}, "
                f"median of {steps}"
            )
            print_table(systems, found, title)
        del systems
    communicator.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--num-processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--rows", type=int, default=128, help="of the global batch")
    parser.add_argument("--embedding-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=0, help="default: fewer where they take long")
    parser.add_argument("--arcface-torch", type=Path, help="folder of partial_fc_v2.py")
    options = parser.parse_args(arguments)
    if World.from_environment().launched:
        run_rank(options)
        return 0
    codes = [launch([sys.executable, *sys.argv], number) for number in options.num_processes]
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
