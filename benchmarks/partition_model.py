"""The planner's time of a step as a sum of terms, and their constants fitted to measured steps.

    seconds = o (products / F + moved / M + tiles t + s + images i + sent / B) + calls k + hops a

`products`, `moved`: the head's operations and bytes (classifier/schedule.py); `tiles`: operators'
own time, of each sweep over a tile; `sent`, `calls`, `hops`: of rings (step_traffic.py); a training
step adds `images` of the backbone. o = max(1, P / cores)^crowding: processes that share a core
share its time, and find its caches emptied by each other; the exponent is fitted too. A call and
its hops are waits until processes are woken, in turn, and take no core from anybody: they are not
multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facetrain.classifier.schedule import Schedule, Speeds, Work, evaluate
from facetrain.step_traffic import (
    Exchange,
    ParameterSize,
    backbone_traffic,
    head_traffic,
    trainer_traffic,
)

TERMS = ("product", "moved", "tile", "step", "image", "call", "hop", "sent")


@dataclass(frozen=True)
class Point:
    """A step that is measured and predicted.

    Attributes:
        rows: N, of all ranks.
        classes: C.
        size: D.
        kind: row_chunks or class_tiles.
        chunks: into which rows are cut.
        groups: copies of the centers; each is cut over world_size / groups ranks.
        trains: with the small backbone before it, as in training.
    """

    rows: int
    classes: int
    size: int
    kind: str = "row_chunks"
    chunks: int = 1
    groups: int = 1
    trains: bool = False

    def __str__(self) -> str:
        parts = [f"N {self.rows:>4} C {self.classes:>6,} D {self.size:>3} {self.kind}"]
        parts += [f"in {self.chunks}"] * (self.chunks > 1)
        parts += [f"{self.groups} copies"] * (self.groups > 1)
        parts += ["+ backbone"] * self.trains
        return " ".join(parts)

    def work(self, world_size: int) -> Work:
        """Of a rank, for the cost model."""
        ranks = world_size // self.groups
        return Work(
            self.rows // self.groups,
            -(-self.classes // ranks),
            self.size,
            whole_gradient=self.groups > 1,
        )

    def chunk_rows(self) -> int:
        return -(-self.rows // self.groups // self.chunks)

    def exchanges(self, world_size: int, backbone: Sequence[ParameterSize]) -> list[Exchange]:
        found = head_traffic(
            num_rows=self.rows,
            size=self.size,
            world_size=world_size,
            num_classes=self.classes,
            head_ranks=world_size // self.groups,
            chunk_rows=self.chunk_rows(),
        )
        if self.trains:
            found += backbone_traffic([backbone], world_size=world_size)
            found += trainer_traffic(world_size=world_size)
        return found


def terms(point: Point, world_size: int, backbone: Sequence[ParameterSize]) -> NDArray[np.float64]:
    """How much of each of TERMS a step has."""

    def schedule(speeds: Speeds) -> Schedule:
        work = point.work(world_size)
        work = Work(**{**vars(work), "speeds": speeds})
        return evaluate(work, point.kind, point.chunk_rows())

    never = math.inf
    products = schedule(Speeds(1.0, never)).seconds
    moved = schedule(Speeds(never, 1.0)).seconds
    plan, work = schedule(Speeds(1.0, 1.0)), point.work(world_size)
    sweeps = 2 if plan.keeps_logits else 3
    tiles = sweeps * point.chunks * -(-work.num_classes // plan.tile_classes)
    images = point.rows / world_size if point.trains else 0.0
    exchanges = point.exchanges(world_size, backbone)
    hops = sum(
        exchange.calls * (exchange.num_ranks - 1) * (2 if exchange.name == "all_reduce" else 1)
        for exchange in exchanges
    )
    sent = sum(exchange.sent_bytes for exchange in exchanges)
    steps = 1.0 + point.trains
    calls = sum(exchange.calls for exchange in exchanges)
    return np.array([products, moved, tiles, steps, images, calls, hops, sent], dtype=np.float64)


@dataclass(frozen=True)
class Constants:
    """Seconds of one of each of TERMS, and how much dearer work is on crowded cores."""

    seconds: NDArray[np.float64]
    crowding: float
    cores: int

    def predict(self, point: Point, world_size: int, backbone: Sequence[ParameterSize]) -> float:
        scaled = terms(point, world_size, backbone) * scales(world_size, self.crowding, self.cores)
        return float(scaled @ self.seconds)


def scales(world_size: int, crowding: float, cores: int) -> NDArray[np.float64]:
    """By which each of TERMS is multiplied: what takes a core, the loopback's copies too."""
    shared = max(1.0, world_size / cores) ** crowding
    return np.array([1.0 if term in ("call", "hop") else shared for term in TERMS])


def fit(
    measured: Sequence[tuple[Point, int, float]], backbone: Sequence[ParameterSize], cores: int
) -> Constants:
    """The constants of the least mean square of relative errors, none below 0."""
    rows = np.array([terms(point, size, backbone) for point, size, _ in measured])
    seconds = np.array([found for _, _, found in measured])
    best = None
    for crowding in np.arange(0.5, 1.51, 0.05):
        factors = np.array([scales(size, crowding, cores) for _, size, _ in measured])
        weighted = rows * factors / seconds[:, None]
        found = non_negative(weighted, np.ones(len(seconds)))
        misfit = float(np.square(weighted @ found - 1).sum())
        if best is None or misfit < best[0]:
            best = misfit, Constants(found, float(crowding), cores)
    assert best is not None
    return best[1]


def non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with coefficients of at least 0: the best of all sets of free ones."""
    best, least = np.zeros(rows.shape[1]), math.inf
    for mask in range(1, 2 ** rows.shape[1]):
        free = [term for term in range(rows.shape[1]) if mask >> term & 1]
        scale = np.linalg.norm(rows[:, free], axis=0)
        if not scale.all():
            continue
        found, *_ = np.linalg.lstsq(rows[:, free] / scale, wanted, rcond=None)
        misfit = float(np.square(rows[:, free] / scale @ found - wanted).sum())
        if (found >= 0).all() and misfit < least:
            best, least = np.zeros(rows.shape[1]), misfit
            best[free] = found / scale
    return best
