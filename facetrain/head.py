"""This rank's classification layer, as the config asks for it and this machine has room for."""

from __future__ import annotations

from pathlib import Path

import torch

from facetrain.classifier import (
    CenterAdamW,
    CenterOptimizer,
    CenterSGD,
    ScheduleWish,
    ShardedClassifier,
)
from facetrain.classifier.arcface_heads import read_arcface_head
from facetrain.config import RunConfig
from facetrain.device import free_memory_bytes
from facetrain.distributed import Communicator, World, even_counts, raise_together
from facetrain.errors import FacetrainError
from facetrain.margins import build_margin
from facetrain.memory import format_bytes, parse_bytes

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SHARE_OF_ROOM = 4
_CENTERS_AT_A_TIME = 2**16


def build_head(
    config: RunConfig,
    num_classes: int,
    backbone_dtype: torch.dtype | None,
    communicator: Communicator,
    world: World,
) -> ShardedClassifier:
    """This rank's share of the classification layer.

    Args:
        backbone_dtype: of the backbone's products; None = fp32.

    Raises:
        FacetrainError: its centers or its step do not fit; on every rank.
    """
    head = config.head
    optimizer = build_center_optimizer(config)
    # Ranks of one machine share its memory; on GPUs each has its own.
    sharing = world.local_world_size if communicator.device.type == "cpu" else 1
    own_bytes = free_memory_bytes(communicator.device) // sharing
    free_bytes = min(communicator.all_gather_object(own_bytes))
    num_parts = head.head_ranks or communicator.world_size
    room_bytes = room_beside_centers(config, num_classes, optimizer, num_parts, free_bytes)
    limit_bytes = room_bytes // _SHARE_OF_ROOM
    if head.head_memory is not None:
        limit_bytes = parse_bytes(head.head_memory)
    dtype = _DTYPES.get(head.head_precision, backbone_dtype or torch.float32)
    built = ShardedClassifier(
        num_classes,
        config.model.embedding_size,
        build_margin(head.margin, head.margin_arguments()),
        communicator,
        scale=head.scale,
        sub_centers=head.sub_centers,
        sample_rate=head.sample_rate,
        others_threshold=head.interclass_filtering_threshold or None,
        through_margin=head.margin_gradient == "through",
        optimizer=optimizer,
        step_in_backward=not needs_whole_gradient(config),
        schedule=ScheduleWish(head.head_schedule, head.chunk_rows, head.tile_classes),
        limit_bytes=limit_bytes,
        product_dtype=dtype,
        seed=config.seed,
        head_ranks=head.head_ranks,
    )
    check_step(config, built, room_bytes)
    return built


def build_center_optimizer(config: RunConfig) -> CenterOptimizer:
    """The centers' optimizer; its learning rate is set before each step."""
    optim = config.optim
    if optim.optimizer == "adamw":
        return CenterAdamW(optim.lr, weight_decay=optim.weight_decay)
    return CenterSGD(
        optim.lr, optim.momentum, optim.weight_decay, _DTYPES[config.head.center_momentum]
    )


def needs_whole_gradient(config: RunConfig) -> bool:
    """Whether the centers' gradient must exist whole before their step."""
    return config.optim.micro_batches > 1 or config.head.max_center_gradient_norm > 0


def room_beside_centers(
    config: RunConfig,
    num_classes: int,
    optimizer: CenterOptimizer,
    num_parts: int,
    free_bytes: int,
) -> int:
    """Bytes a process has left beside centers and their optimizer's state, before any is taken.

    Args:
        num_parts: processes that share one copy of the centers.

    Raises:
        FacetrainError: they do not fit; names sizes and what to change.
    """
    size = config.model.embedding_size
    rows = max(even_counts(num_classes, num_parts)) * config.head.sub_centers
    needed = rows * (4 * size + optimizer.state_bytes_per_row(size))
    if needed > free_bytes:
        adamw = config.optim.optimizer == "adamw"
        more = (
            "a larger --head-ranks" if config.head.head_ranks else "more processes on more memory"
        )
        smaller = "--optimizer sgd" if adamw else "--center-momentum bf16"
        raise FacetrainError(
            f"{num_classes:,} identities over {num_parts} processes: centers of {size} dimensions "
            f"and their optimizer state take {format_bytes(needed)} a process, and "
            f"{format_bytes(free_bytes)} are free; use {more}, a smaller "
            f"--embedding-size, or {smaller}"
        )
    return free_bytes - needed


def check_step(config: RunConfig, head: ShardedClassifier, room_bytes: int) -> None:
    """Whether a step of the head fits into --head-memory, and into memory at all.

    Args:
        room_bytes: free beside centers and optimizer state; the same on every rank.

    Raises:
        FacetrainError: it does not; names the least it takes.
    """
    num_rows = head.most_rows(config.optim.largest_micro_batch)
    asked = config.head.head_memory
    # The smallest one, where none is small enough.
    schedule = head.schedule(num_rows)
    least = format_bytes(schedule.transient_bytes, round_up=True)
    step = f"a step of {num_rows:,} rows and {head.num_classes:,} identities"
    if asked is not None and schedule.transient_bytes > parse_bytes(asked):
        raise FacetrainError(f"--head-memory {asked}: {step} takes {least} at least; use that")
    if schedule.transient_bytes > room_bytes:
        advice = "lower --head-memory" if asked else "use more processes on more memory"
        raise FacetrainError(
            f"{step} takes {least} a process beyond centers and their optimizer state, and "
            f"{format_bytes(room_bytes)} are free; {advice}"
        )


def describe_head(head: ShardedClassifier, num_rows: int) -> str:
    """One line for the log: what the head computes, and how.

    Args:
        num_rows: of all ranks.
    """
    schedule = head.schedule(head.most_rows(num_rows))
    parts = [f"head: {head.num_classes:,} identities, {head.margin}"]
    if head.copies.world_size > 1:
        shared = head.inside.world_size
        each = "each process has all" if shared == 1 else f"each cut over {shared} processes"
        parts.append(f"{head.copies.world_size} copies of the centers, {each}")
    if head.sub_centers > 1:
        parts.append(f"{head.sub_centers} centers each")
    if head.options.others_threshold is not None:
        parts.append(f"other classes above cosine {head.options.others_threshold:g} left out")
    if head.sampler is not None:
        parts.append(f"{head.sampler.rate:.0%} of the identities in a step")
    if head.optimizer is not None:
        when = ", stepped in the backward pass" if head.step_in_backward else ""
        parts.append(f"centers by {head.optimizer.describe()}{when}")
    if head.products.rounds:
        parts.append(f"products in {str(head.products.dtype).removeprefix('torch.')}")
    room = format_bytes(schedule.transient_bytes)
    parts.append(f"{schedule.describe()}, {room} beyond centers and optimizer state")
    return "; ".join(parts)


def load_initial_centers(head: ShardedClassifier, folder: Path) -> str:
    """Take over centers, and momentum where it is there, from arcface_torch's per-rank files.

    Returns:
        What was taken over, for the log.

    Raises:
        FacetrainError: files that cannot be used, on every rank.
    """
    problem, taken = None, "centers"
    try:
        source = read_arcface_head(folder, head.num_classes)
        if source.embedding_size != head.centers.shape[1]:
            raise FacetrainError(
                f"centers of {source.embedding_size} dimensions; use --embedding-size "
                f"{source.embedding_size}, or start without"
            )
        rows = head.rows_state()
        first, end = head.row_range
        with_momentum = source.has_momentum and "centers/momentum" in rows
        taken += " and momentum" if with_momentum else ", no momentum"
        # A part at a time, lest they take their memory twice.
        for low in range(first, end, _CENTERS_AT_A_TIME):
            high = min(end, low + _CENTERS_AT_A_TIME)
            part = slice(low - first, high - first)
            rows["centers"][part] = source.rows(low, high)
            if with_momentum:
                momentum = source.momentum(low, high)
                assert momentum is not None
                rows["centers/momentum"][part] = momentum
    except FacetrainError as error:
        problem = f"--initial-centers {folder}: {error}"
    except OSError as error:
        problem = f"--initial-centers {folder}: cannot be read ({error.strerror or error})"
    raise_together(head.communicator, problem)
    return f"{taken} of {head.num_classes:,} identities taken over from {folder}"
