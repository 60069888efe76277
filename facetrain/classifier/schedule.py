"""In which order the tiles of the logits are worked through, and what that costs.

The logits of N rows and K classes are never whole unless they are small. Two schedules:

    row_chunks    for each chunk of rows: logits of all K classes are made and kept until the
                  chunk's sums are known, then turned into gradients. No product is done twice.
    class_tiles   all rows at once: each tile of classes is made once for the sums and once more
                  for the gradients. One more product; no logits but a tile.

With P = 2 N K D operations a product, time is 3 P / F (4 P / F for class tiles) plus what is read
and written over the memory's speed. Bytes beyond the resting state (centers, optimizer state):

    features            3 * 4 N D                       gathered, their gradient, that of one rank
    lengths             4 K S
    logits              row_chunks: b n K               class_tiles: 0
    centers' gradient   4 K S D where it must be whole  else 0
    one tile of t       t S (4 D g + b n h)             what is worked with of t classes

n rows of a chunk, S centers a class; b bytes a logit: 4, and 1 more where S > 1. g = 2 for the
gradient and its radial part, and copies of centers and optimizer state where classes are sampled.
h = 1 in class tiles, 1 more where S > 1, and 1.5 more where the margin changes other classes. In
16-bit types g is 1.5 more and h 0.5. The gradient must be whole where something other than the step
itself needs it (accumulation, clipping, another optimizer); several chunks add up to one more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from facetrain.errors import FacetrainError

SCHEDULES = ("row_chunks", "class_tiles")
# On a CPU what fits its second-level cache, about; tiles of less pay more for calls than for work.
_CPU_TILE_BYTES = 3 * 2**19
_CUDA_TILE_BYTES = 256 * 2**20
_MOST_CHUNKS = 4096


@dataclass(frozen=True)
class Speeds:
    """What a cost is made of; only their ratios matter for a choice."""

    operations_per_s: float
    memory_bytes_per_s: float
    sweep_s: float = 0.0
    """Of starting the operators that work through one tile once, whatever its size."""


@dataclass(frozen=True)
class Work:
    """What a schedule is chosen for; equal on every rank.

    Attributes:
        num_rows: N, of the global batch.
        num_classes: K, the most classes in use on any rank.
        size: D.
        centers_per_class: S; there are K S centers.
        sampled: not all classes are in use.
        state_rows: tensors of the optimizer's state that are as large as the centers.
        shapes_others: the margin changes other classes' cosines.
        whole_gradient: the centers' gradient is needed whole.
        device_type: "cpu" or "cuda".
        product_dtype: of the matrix products.
        speeds: of the device; None: rough ones of its type.
    """

    num_rows: int
    num_classes: int
    size: int
    centers_per_class: int = 1
    sampled: bool = False
    state_rows: int = 1
    shapes_others: bool = False
    whole_gradient: bool = False
    device_type: str = "cpu"
    product_dtype: torch.dtype = torch.float32
    speeds: Speeds | None = None

    @property
    def logit_bytes(self) -> int:
        return 4 if self.centers_per_class == 1 else 5

    @property
    def center_bytes(self) -> int:
        """Of one class's centers, or their gradient, in fp32."""
        return 4 * self.size * self.centers_per_class


@dataclass(frozen=True)
class Schedule:
    """A way through the logits.

    Attributes:
        kind: row_chunks or class_tiles.
        chunk_rows: rows that are worked on together.
        tile_classes: classes of one tile.
        transient_bytes: predicted, beyond the resting state.
        seconds: predicted time of a step, for the comparison only.
    """

    kind: str
    chunk_rows: int
    tile_classes: int
    transient_bytes: int
    seconds: float

    @property
    def keeps_logits(self) -> bool:
        return self.kind == "row_chunks"

    def num_chunks(self, num_rows: int) -> int:
        return max(1, -(-num_rows // self.chunk_rows))

    def describe(self) -> str:
        """One line for a log."""
        if self.keeps_logits:
            return f"row chunks of {self.chunk_rows:,}"
        return f"class tiles of {self.tile_classes:,} for {self.chunk_rows:,} rows, made twice"


@dataclass(frozen=True)
class ScheduleWish:
    """What a user fixes; the rest is chosen.

    Attributes:
        kind: auto, row_chunks or class_tiles.
        chunk_rows: 0 = chosen.
        tile_classes: 0 = chosen.
    """

    kind: str = "auto"
    chunk_rows: int = 0
    tile_classes: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("auto", *SCHEDULES):
            raise FacetrainError(
                f"head schedule {self.kind!r}: must be one of auto, {', '.join(SCHEDULES)}"
            )
        for name, value in (("chunk_rows", self.chunk_rows), ("tile_classes", self.tile_classes)):
            if value < 0:
                raise FacetrainError(f"{name} {value}: must be 0 (chosen) or more")


def choose_schedule(work: Work, limit_bytes: int, wish: ScheduleWish | None = None) -> Schedule:
    """The fastest schedule within `limit_bytes`, or the smallest where none is.

    Every rank must pass the same, since ranks meet once per chunk.
    """
    wish = wish or ScheduleWish()
    kinds = SCHEDULES if wish.kind == "auto" else (wish.kind,)
    candidates = [
        evaluate(work, kind, rows, wish.tile_classes)
        for kind in kinds
        for rows in ([wish.chunk_rows] if wish.chunk_rows else chunk_sizes(kind, work.num_rows))
    ]
    fitting = [c for c in candidates if c.transient_bytes <= limit_bytes]
    if fitting:
        return min(fitting, key=lambda c: (c.seconds, c.transient_bytes))
    return min(candidates, key=lambda c: c.transient_bytes)


def evaluate(work: Work, kind: str, chunk_rows: int, tile_classes: int = 0) -> Schedule:
    """Cost of one schedule; formulas at the top of this file."""
    rows = max(1, min(chunk_rows, work.num_rows))
    chunks = -(-work.num_rows // rows) or 1
    kept_row_bytes = work.logit_bytes * rows
    keeps = kind == "row_chunks"
    rounds = work.product_dtype != torch.float32
    center_copies = 2 + (1 + work.state_rows) * work.sampled + 1.5 * rounds
    logit_copies = (not keeps) + (work.centers_per_class > 1) + 0.5 * rounds
    logit_copies += 1.5 * work.shapes_others
    tile_row_bytes = center_copies * work.center_bytes
    tile_row_bytes += logit_copies * kept_row_bytes * work.centers_per_class
    tile_bytes = _CUDA_TILE_BYTES if work.device_type == "cuda" else _CPU_TILE_BYTES
    tile = tile_classes or max(1, int(tile_bytes // tile_row_bytes))
    tile = min(tile, max(1, work.num_classes))

    transient = 3 * 4 * work.num_rows * work.size + tile * tile_row_bytes
    transient += 4 * work.num_classes * work.centers_per_class
    transient += work.num_classes * kept_row_bytes * keeps
    # Chunks add up to a gradient of their own, which then goes where earlier micro-batches' went.
    transient += work.num_classes * work.center_bytes * (work.whole_gradient + (chunks > 1))

    speeds = work.speeds or speeds_of(work.device_type, work.product_dtype)
    num_centers = work.num_classes * work.centers_per_class
    product = 2.0 * work.num_rows * num_centers * work.size
    # Centers are read for the sums and for the gradients; logits pass several times.
    moved = chunks * 2.0 * work.num_classes * work.center_bytes
    moved += (4.0 if keeps else 1.0) * work.num_rows * work.num_classes * work.logit_bytes
    if work.whole_gradient or chunks > 1:
        moved += 2.0 * chunks * work.num_classes * work.center_bytes
    seconds = (3 if keeps else 4) * product / speeds.operations_per_s
    seconds += moved / speeds.memory_bytes_per_s
    sweeps = (2 if keeps else 3) * chunks * -(-work.num_classes // tile)
    seconds += sweeps * speeds.sweep_s
    return Schedule(kind, rows, tile, int(transient), seconds)


def speeds_of(device_type: str, product_dtype: torch.dtype) -> Speeds:
    """Rough speeds: of one CPU core with AVX2, measured; of an H100 by its data sheet."""
    if device_type == "cuda":
        return Speeds(50e12 if product_dtype == torch.float32 else 600e12, 2.5e12)
    return Speeds(60e9, 8e9)


def chunk_sizes(kind: str, num_rows: int) -> list[int]:
    """All rows, and halves of them; class tiles take all rows, lest centers be read more often."""
    if kind == "class_tiles":
        return [max(1, num_rows)]
    sizes = []
    chunks = 1
    while chunks <= min(_MOST_CHUNKS, max(1, num_rows)):
        sizes.append(max(1, -(-num_rows // chunks)))
        chunks *= 2
    return sizes
