"""Which collectives a training step makes, among whom, and of how many bytes: formulas.

    for exchange in head_traffic(num_rows=32768, size=512, world_size=256, num_classes=10_000_000):
        print(exchange.name, exchange.group, exchange.calls, exchange.whole_bytes)

The planner's times are made of these; tests hold them against the collectives that steps make,
among 2 to 8 processes and as rank 0 of 256 with torch's `fake` process group.

Of the head, in each micro-batch of N rows and P ranks, G of which share a copy of the centers (R =
N G / P rows of theirs, w = D + 1 where the margin looks at norms, else D; K classes of a rank):

    all-gather       head     4 R w     unit features
    all-gather       head     8 R       labels
    reduce-scatter   head     4 R w     the features' gradient
    all-reduce       head     4 R       target cosines, where the margin shapes other classes
    all-reduce       head     8 n       sums, of each chunk of n rows
    all-reduce       copies   8         the loss
    all-reduce       copies   4 K S D   centers' gradient, once a step

Not here, as they are rare: sums made again where digits were lost, names of skipped images,
BatchNorm statistics at a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from facetrain.distributed import even_counts
from facetrain.distributed.gradients import DEFAULT_BUCKET_BYTES

_FLOAT_BYTES, _INTEGER_BYTES = 4, 8


@dataclass(frozen=True)
class Exchange:
    """Equal collectives of a step.

    Attributes:
        name: as in `Communicator`.
        whole_bytes: of the whole (gathered or reduced) tensor, of each call.
        calls: how many.
        group: "world": all ranks; "head": consecutive ranks that share a copy of the centers;
            "copies": ranks at the same place in each copy.
        num_ranks: of the group.
    """

    name: str
    whole_bytes: int
    calls: int
    group: str
    num_ranks: int

    @property
    def sent_bytes(self) -> int:
        """What a rank of a ring sends in all calls, as `CountedCommunicator` counts it."""
        if self.name == "broadcast":
            return self.calls * self.whole_bytes
        times = 2 if self.name == "all_reduce" else 1
        share = (self.num_ranks - 1) / self.num_ranks
        return self.calls * round(times * self.whole_bytes * share)


def head_traffic(
    *,
    num_rows: int,
    size: int,
    world_size: int,
    num_classes: int,
    head_ranks: int = 0,
    chunk_rows: int = 0,
    micro_batches: int = 1,
    sub_centers: int = 1,
    uses_norms: bool = False,
    shapes_others: bool = False,
    clips_centers: bool = False,
    asks_counts: bool = False,
) -> list[Exchange]:
    """Collectives of the head in a training step.

    Args:
        num_rows: N, of all ranks in a micro-batch, cut evenly.
        size: D.
        num_classes: C.
        head_ranks: G; 0 = all ranks.
        chunk_rows: rows of a chunk; 0 = all at once.
        micro_batches: of a step.
        sub_centers: S.
        uses_norms: of the margin, as `shapes_others`.
        clips_centers: `max_center_gradient_norm` is set.
        asks_counts: `counts` is not given to the head, which then asks the ranks.
    """
    group_ranks = head_ranks or world_size
    num_copies = world_size // group_ranks
    rows = sum(even_counts(num_rows, world_size)[:group_ranks])
    step = chunk_rows or max(1, rows)
    feature_bytes = _FLOAT_BYTES * rows * (size + uses_norms)
    chunks = Counter(min(step, rows - first) for first in range(0, max(1, rows), step))

    def among(name: str, num_bytes: int, group: str, calls: int = micro_batches) -> Exchange:
        ranks = {"world": world_size, "head": group_ranks, "copies": num_copies}[group]
        return Exchange(name, num_bytes, calls, group, ranks)

    found = [
        among("all_gather", feature_bytes, "head"),
        among("all_gather", _INTEGER_BYTES * rows, "head"),
        among("reduce_scatter", feature_bytes, "head"),
        among("all_reduce", 2 * _FLOAT_BYTES, "copies"),
    ]
    for length, number in chunks.items():
        sums_bytes = 2 * _FLOAT_BYTES * length
        found.append(among("all_reduce", sums_bytes, "head", number * micro_batches))
    if asks_counts:
        found.append(among("all_gather", _INTEGER_BYTES * world_size, "world"))
    if shapes_others:
        found.append(among("all_reduce", _FLOAT_BYTES * rows, "head"))
    # Of the first rank of a copy, which has the most classes.
    classes = max(even_counts(num_classes, group_ranks))
    gradient_bytes = _FLOAT_BYTES * classes * sub_centers * size
    found.append(among("all_reduce", gradient_bytes, "copies", 1))
    if clips_centers:
        found.append(among("all_reduce", 8, "head", 1))
    return _sent(found)


def trainer_traffic(*, world_size: int, micro_batches: int = 1) -> list[Exchange]:
    """The exchange of batch sizes, skipped images and wishes to stop, once a step."""
    whole_bytes = _INTEGER_BYTES * (micro_batches + 2) * world_size
    return _sent([Exchange("all_gather", whole_bytes, 1, "world", world_size)])


@dataclass(frozen=True)
class ParameterSize:
    """A parameter, as it is cut: rows of its first dimension.

    Attributes:
        num_rows: of the first dimension; 1 of a scalar.
        row_bytes: of one of them.
    """

    num_rows: int
    row_bytes: int

    @classmethod
    def of(cls, parameter: Tensor) -> ParameterSize:
        num_rows = parameter.shape[0] if parameter.dim() else 1
        return cls(num_rows, parameter.nbytes // max(1, num_rows))

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    def cut_bytes(self, world_size: int) -> int:
        """Of all ranks' parts, which are equal: rows are added where they are not."""
        return -(-self.num_rows // world_size) * world_size * self.row_bytes


def backbone_traffic(
    blocks: Sequence[Sequence[ParameterSize]],
    *,
    world_size: int,
    zero_stage: int = 0,
    keeps: Sequence[bool] = (),
    micro_batches: int = 1,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> list[Exchange]:
    """Collectives of the backbone in a training step (facetrain/zero.py).

    Stages 0 and 1 sum gradients in buckets (distributed/gradients.py), once a step; stage 1 then
    sends each parameter from the rank that stepped it. In stages 2 and 3, in each micro-batch, a
    block's parameters are gathered before its forward pass, and its gradients reduced and scattered
    after its backward pass; a block that does not keep them gathers them again for the backward
    pass. The norm of gradients that are cut takes 8 bytes.

    Args:
        blocks: parameters that are trained, in order; those outside of any block are one more.
        zero_stage: 0 to 3.
        keeps: of each block, in stage 3; default: none does. In stage 2 all do.
        micro_batches: of a step.
        bucket_bytes: as given to `GradientSum`.
    """
    flat = [parameter.num_bytes for block in blocks for parameter in block]
    if zero_stage < 2:
        summed = Counter(bucket_sizes(flat, bucket_bytes))
        sent = Counter(flat) if zero_stage == 1 else {}
        return _sent(
            Exchange(name, size, calls, "world", world_size)
            for name, counts in (("all_reduce", summed), ("broadcast", sent))
            for size, calls in counts.items()
        )
    kept = [zero_stage == 2 or keep for keep in list(keeps) or [False] * len(blocks)]
    found = [Exchange("all_reduce", 8, 1, "world", world_size)]
    for block, keep in zip(blocks, kept, strict=True):
        size = sum(parameter.cut_bytes(world_size) for parameter in block)
        if size:
            gathers = (2 - keep) * micro_batches
            found.append(Exchange("all_gather", size, gathers, "world", world_size))
            found.append(Exchange("reduce_scatter", size, micro_batches, "world", world_size))
    return _sent(found)


def bucket_sizes(parameter_bytes: Sequence[int], bucket_bytes: int) -> list[int]:
    """Bytes of each bucket in which gradients of one type are summed, in the order of sending."""
    buckets: list[int] = []
    room = -1
    for size in reversed(parameter_bytes):
        if size > room:
            buckets.append(0)
            room = bucket_bytes
        buckets[-1] += size
        room -= size
    return buckets


def calls_by_name(exchanges: Iterable[Exchange]) -> Counter[str]:
    """Calls of each collective, as `CountedCommunicator.calls`."""
    calls: Counter[str] = Counter()
    for exchange in exchanges:
        calls[exchange.name] += exchange.calls
    return calls


def sent_bytes_by_name(exchanges: Iterable[Exchange]) -> Counter[str]:
    """Bytes a rank sends, as `CountedCommunicator.sent_bytes`."""
    sent: Counter[str] = Counter()
    for exchange in exchanges:
        sent[exchange.name] += exchange.sent_bytes
    return sent


def _sent(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Those among more ranks than one."""
    return [exchange for exchange in exchanges if exchange.num_ranks > 1]
