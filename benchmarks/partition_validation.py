"""The planner's model of a step's time against real steps: constants fitted on some sizes, others
and a number of processes that was not fitted predicted.

    python benchmarks/partition_validation.py [--rounds 20] [--save FILE.json | --load FILE.json]

Real heads (and a small backbone before them) run among 2, 4 and 8 gloo processes of one thread, all
started at once and used in turn, so that a slow moment of the machine meets every number of
processes. Each round visits every step in another order; of a step's visits the half with the least
other work on the machine counts, by the median of its steps.
Constants are fitted to half of the steps at 2 and 4 processes. Printed: the constants, every step
with its prediction, and for ten small cases the order of the best three plans.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from partition_model import TERMS, Constants, Point, fit

from facetrain.backbones import build_backbone
from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.distributed import Communicator, World, connect, even_counts
from facetrain.distributed.cpus import usable_cpus
from facetrain.distributed.gradients import GradientSum
from facetrain.margins import CosFace
from facetrain.step_traffic import ParameterSize

WORLDS = (2, 4, 8)
FITTED_WORLDS = (2, 4)
BACKBONE = "mobilefacenet_tiny"
VISIT_S = 0.1
TIMEOUT_S = 600.0

FITTED = [
    Point(64, 4_000, 128),
    Point(256, 8_000, 128),
    Point(128, 30_000, 128),
    Point(128, 8_000, 512),
    Point(256, 8_000, 128, "row_chunks", 4),
    Point(256, 8_000, 128, "class_tiles"),
    Point(64, 30_000, 128, "class_tiles"),
    Point(32, 8_000, 512, "row_chunks", 2),
    Point(64, 4_000, 512, "class_tiles"),
    Point(128, 8_000, 128, groups=2),
    Point(64, 8_000, 512, groups=2),
    Point(16, 4_000, 128, trains=True),
    Point(32, 8_000, 128, trains=True),
]
UNSEEN = [
    Point(128, 4_000, 128),
    Point(512, 8_000, 128),
    Point(64, 30_000, 128),
    Point(256, 8_000, 512),
    Point(64, 8_000, 512, "class_tiles"),
    Point(256, 30_000, 128, "class_tiles"),
    Point(128, 30_000, 128, "row_chunks", 2),
    Point(512, 4_000, 128, "row_chunks", 8),
    Point(64, 4_000, 128, groups=2),
    Point(32, 4_000, 128, "class_tiles", trains=True),
    Point(16, 30_000, 128, trains=True),
]
TOLERANCES = {"to the letter": 0.0, "within 5 %": 0.05, "within 10 %": 0.1}
CASES = [  # rows, classes, size, processes
    (64, 4_000, 128, 2), (256, 4_000, 128, 2), (64, 30_000, 128, 2), (256, 8_000, 128, 2),
    (32, 8_000, 512, 2), (128, 4_000, 128, 4), (64, 30_000, 128, 4), (128, 8_000, 512, 4),
    (64, 4_000, 128, 8), (64, 30_000, 128, 8),
]  # fmt: skip


def plans(rows: int, classes: int, size: int) -> list[Point]:
    """What is chosen among in a case."""
    return [
        Point(rows, classes, size),
        Point(rows, classes, size, "row_chunks", 2),
        Point(rows, classes, size, "row_chunks", 4),
        Point(rows, classes, size, "class_tiles"),
        Point(rows, classes, size, groups=2),
    ]


# --- in each rank --------------------------------------------------------------------------------


class Rank:
    """Heads by classes, size and copies; a backbone that all of them share."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.heads: dict[tuple[int, int, int], ShardedClassifier] = {}
        self.backbones: dict[int, tuple[torch.nn.Module, GradientSum]] = {}

    def head(self, point: Point) -> ShardedClassifier:
        key = (point.classes, point.size, point.groups)
        if key not in self.heads:
            self.heads[key] = ShardedClassifier(
                point.classes,
                point.size,
                CosFace(0.4),
                self.communicator,
                optimizer=CenterSGD(0.01, 0.9),
                head_ranks=self.communicator.world_size // point.groups,
            )
        head = self.heads[key]
        head.schedule_wish = ScheduleWish(point.kind, point.chunk_rows())
        return head

    def backbone(self, size: int) -> tuple[torch.nn.Module, GradientSum]:
        if size not in self.backbones:
            torch.manual_seed(0)
            model = build_backbone(BACKBONE, size).train()
            self.backbones[size] = model, GradientSum(list(model.parameters()), self.communicator)
        return self.backbones[size]

    def measure(self, point: Point, num_steps: int) -> list[float]:
        """Seconds of each of some steps, one after another."""
        counts = even_counts(point.rows, self.communicator.world_size)
        own = counts[self.communicator.rank]
        generator = torch.Generator().manual_seed(self.communicator.rank)
        labels = torch.randint(point.classes, (own,), generator=generator)
        head = self.head(point)
        images = torch.zeros(own, 3, 112, 112) if point.trains else torch.empty(0)
        features = torch.randn(own, point.size, generator=generator)
        exchanged = torch.zeros(1, 3, dtype=torch.int64)
        self.communicator.barrier()
        moments = [time.perf_counter()]
        for _ in range(num_steps):
            if point.trains:
                size = self.communicator.world_size
                self.communicator.all_gather(exchanged, [1] * size)
                model, gradient_sum = self.backbone(point.size)
                with gradient_sum:
                    embeddings = model(images)
                    leaf = embeddings.detach().requires_grad_()
                    head(leaf, labels, counts=counts).backward()
                    embeddings.backward(leaf.grad)
                model.zero_grad()
            else:
                head(features.requires_grad_(), labels, counts=counts).backward()
            head.step()
            moments.append(time.perf_counter())
        return [end - start for start, end in itertools.pairwise(moments)]


def run_rank(world: World, link: Connection | None) -> None:
    """Answers measurements until told to stop; only rank 0 has a link."""
    torch.set_num_threads(1)
    communicator = connect(world, torch.device("cpu"), "torch", TIMEOUT_S)
    rank = Rank(communicator)
    while True:
        asked = link.recv() if link is not None else None
        asked = communicator.broadcast_object(asked)
        if asked is None:
            break
        seconds = rank.measure(*asked)
        if link is not None:
            link.send(seconds)
    communicator.close()


# --- the whole -----------------------------------------------------------------------------------


class Visits:
    """What visits of a step found, and how busy the machine was with other work meanwhile."""

    def __init__(self) -> None:
        self.found: list[tuple[float, list[float]]] = []

    def add(self, seconds: list[float], other_cores: float) -> None:
        self.found.append((other_cores, seconds))

    def median_s(self) -> float:
        """Of all steps of the quieter half of the visits."""
        quiet = sorted(self.found)[: (len(self.found) + 1) // 2]
        return statistics.median(second for _, seconds in quiet for second in seconds)

    def repeats(self) -> float:
        """How far the medians of two halves of the visits that count are apart."""
        quiet = sorted(self.found)[: (len(self.found) + 1) // 2]
        halves = [[s for _, seconds in quiet[part::2] for s in seconds] for part in (0, 1)]
        if not all(halves):
            return math.nan
        first, second = map(statistics.median, halves)
        return abs(first / second - 1)

    def other_cores(self) -> float:
        quiet = sorted(self.found)[: (len(self.found) + 1) // 2]
        return statistics.median(other_cores for other_cores, _ in quiet)


class Worlds:
    """Processes of every number of ranks, started at once, asked one number at a time."""

    def __init__(self, folder: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "facetrain.classifier"])
        self.links: dict[int, Connection] = {}
        self.processes: dict[int, list[Any]] = {}
        for size in WORLDS:
            self.links[size], theirs = context.Pipe()
            self.processes[size] = []
            for rank in range(size):
                world = World(rank, size, rank, f"file://{folder}/{size}", True, size)
                link = theirs if rank == 0 else None
                process = context.Process(target=run_rank, args=(world, link), daemon=True)
                process.start()
                self.processes[size].append(process)

    def measure(self, point: Point, size: int, num_steps: int) -> tuple[list[float], float]:
        """Seconds of each step, and cores that were busy with other work."""
        pids = [process.pid for process in self.processes[size]]
        before, started = busy_s(pids), time.perf_counter()
        self.links[size].send((point, num_steps))
        seconds = self.links[size].recv()
        return seconds, (busy_s(pids) - before) / (time.perf_counter() - started)

    def close(self) -> None:
        for link in self.links.values():
            link.send(None)
        for process in itertools.chain(*self.processes.values()):
            process.join(10)

    def kill(self) -> None:
        for process in itertools.chain(*self.processes.values()):
            process.kill()


def busy_s(pids: Sequence[int]) -> float:
    """CPU seconds of the machine so far, without those of some processes (Linux)."""
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, soft, *_ = (
        int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    ours = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ours += int(words[11]) + int(words[12])
    return (user + nice + system + irq + soft - ours) / tick


def measure_all(rounds: int, seed: int, limit_s: float) -> list[tuple[Point, int, float]]:
    """(step, processes, median seconds) of every step at every number of processes."""
    wanted = [(point, size) for point in (*FITTED, *UNSEEN) for size in WORLDS]
    ordered = [(point, size) for *case, size in CASES for point in plans(*case)]
    wanted = list(dict.fromkeys([*wanted, *ordered]))
    visits = {key: Visits() for key in wanted}
    until = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(folder)
        try:
            steps = {}
            for point, size in wanted:  # makes heads and momentum
                worlds.measure(point, size, 1)
                seconds, _ = worlds.measure(point, size, 1)
                steps[point, size] = max(2, min(20, round(VISIT_S / seconds[0])))
            order = random.Random(seed)
            for number in range(rounds):
                if time.monotonic() > until:
                    print(f"{number} rounds in {limit_s:.0f} s")
                    break
                turns = [*wanted, *ordered, *ordered]
                order.shuffle(turns)
                for point, size in turns:
                    found = worlds.measure(point, size, steps[point, size])
                    visits[point, size].add(*found)
            worlds.close()
        finally:
            worlds.kill()
    others = statistics.median(found.other_cores() for found in visits.values())
    print(f"other work during the visits that count: {others:.2f} cores")
    apart = statistics.median(found.repeats() for found in visits.values())
    print(f"medians of two halves of the visits are {apart:.1%} apart, in the median")
    return [(point, size, found.median_s()) for (point, size), found in visits.items()]


def backbone_sizes(size: int = 128) -> list[ParameterSize]:
    return [ParameterSize.of(p) for p in build_backbone(BACKBONE, size).parameters()]


def print_constants(constants: Constants) -> None:
    units = dict(zip(TERMS, constants.seconds.tolist(), strict=True))

    def rate(term: str) -> str:
        return f"{1e-9 / units[term]:.1f} G/s" if units[term] else "unlimited"

    print(
        f"products {rate('product')}, memory {rate('moved')}, link {rate('sent')} bytes; ", end=""
    )
    for term in ("tile", "step", "image", "call", "hop"):
        print(f"{term} {1e6 * units[term]:.0f} us; ", end="")
    print(f"crowding {constants.crowding:.2f} on {constants.cores} cores")


def print_errors(measured: Sequence[tuple[Point, int, float]], constants: Constants) -> None:
    backbone = backbone_sizes()
    groups: dict[str, list[float]] = {}
    print(f"{'P':>2} {'step':<48} {'':>10} {'ms':>7} {'model':>7} {'error':>6}")
    for point, size, seconds in sorted(measured, key=lambda row: (row[1], str(row[0]))):
        if point not in FITTED and point not in UNSEEN:
            continue
        is_fitted = point in FITTED and size in FITTED_WORLDS
        group = "fitted" if is_fitted else "unseen" if size in FITTED_WORLDS else "unseen P"
        predicted = constants.predict(point, size, backbone)
        error = predicted / seconds - 1
        groups.setdefault(group, []).append(error)
        print(
            f"{size:>2} {point!s:<48} {group:>10} {1e3 * seconds:>7.1f} {1e3 * predicted:>7.1f} "
            f"{error:>+6.0%}"
        )
    for group, errors in groups.items():
        sizes = sorted(map(abs, errors))
        print(
            f"{group}: {len(errors)} steps, median error {statistics.median(sizes):.0%}, largest "
            f"{sizes[-1]:.0%}, {sum(size <= 0.2 for size in sizes)} within 20 %"
        )


def print_orders(measured: Sequence[tuple[Point, int, float]], constants: Constants) -> None:
    """Of the best three plans, to the letter, and where close ones may stand either way."""
    backbone, times = backbone_sizes(), {(point, size): s for point, size, s in measured}
    verdicts: Counter[str] = Counter()
    for rows, classes, size, world_size in CASES:
        known = {point: times[point, world_size] for point in plans(rows, classes, size)}
        predicted = sorted(known, key=lambda p: constants.predict(p, world_size, backbone))
        needed = closeness([known[point] for point in predicted])
        verdict = next((name for name, most in TOLERANCES.items() if needed <= most), "WRONG")
        verdicts[verdict] += 1
        print(f"P {world_size} N {rows} C {classes:,} D {size}: {verdict} ({needed:.1%})")
        for point in predicted:
            model = 1e3 * constants.predict(point, world_size, backbone)
            print(f"    {point!s:<48} {1e3 * known[point]:>7.1f} ms, model {model:>7.1f}")
    found = ", ".join(f"{verdicts[name]} {name}" for name in (*TOLERANCES, "WRONG"))
    print(f"order of the best three of {len(CASES)} cases: {found}")


def closeness(seconds: Sequence[float]) -> float:
    """Least share by which plans may be closer and count as equal, for this order to be right.

    Args:
        seconds: measured, in the predicted order; of the first three the order counts, and that
            none of the others is faster.
    """
    return max(
        max(0.0, 1 - later / earlier)
        for place, earlier in enumerate(seconds[:3])
        for later in seconds[place + 1 :]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit-s", type=float, default=420.0, help="no round begins later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    if options.load:
        rows = json.loads(options.load.read_text())
        measured = [(Point(**point), size, seconds) for point, size, seconds in rows]
    else:
        measured = measure_all(options.rounds, options.seed, options.limit_s)
    if options.save:
        options.save.write_text(json.dumps([(asdict(p), size, s) for p, size, s in measured]))
    chosen = [row for row in measured if row[0] in FITTED and row[1] in FITTED_WORLDS]
    constants = fit(chosen, backbone_sizes(), usable_cpus())
    print_constants(constants)
    print_errors(measured, constants)
    print_orders(measured, constants)
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
