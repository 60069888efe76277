"""Which image goes where: an order's endless stream of images, cut into global batches.

Step s takes positions `[s * N, (s + 1) * N)` of the stream; micro-batches and then ranks take
contiguous parts of them. So no image is dropped, a batch may straddle two epochs, and what a step
sees depends neither on the world size nor on where the run was resumed.

Legend: N rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.orders import Order, require


class StreamSampler:
    """Batch sampler of one rank: each item is the list of (position, index) of one micro-batch.

    Args:
        order: the stream of images.
        global_batch_size: N, over all ranks and micro-batches of a step.
        num_steps: steps of the whole run; a resumed one yields the `num_steps - start_step` left.
        rank: this process, 0 .. world_size - 1.
        world_size: number of processes.
        micro_batches: parts a step is cut into (gradient accumulation); sizes differ by at most 1.
        start_step: step to go on from.

    Raises:
        DatasetError: a value out of its range, or a micro-batch with fewer rows than ranks.
    """

    def __init__(
        self,
        order: Order,
        global_batch_size: int,
        num_steps: int,
        *,
        rank: int,
        world_size: int,
        micro_batches: int = 1,
        start_step: int = 0,
    ) -> None:
        require("num_steps", num_steps, num_steps >= 0, "0 or more")
        require("world_size", world_size, world_size >= 1, "1 or more")
        require("rank", rank, 0 <= rank < world_size, f"0 .. {world_size - 1}")
        require("micro_batches", micro_batches, micro_batches >= 1, "1 or more")
        require("start_step", start_step, 0 <= start_step <= num_steps, f"0 .. {num_steps}")
        if global_batch_size // micro_batches < world_size:
            raise DatasetError(
                f"global_batch_size is {global_batch_size}: too small for {micro_batches} "
                f"micro-batches on {world_size} ranks, where some rank would get no image; "
                f"allowed: {micro_batches * world_size} or more"
            )
        self.order = order
        self.global_batch_size = global_batch_size
        self.num_steps = num_steps
        self.rank = rank
        self.world_size = world_size
        self.micro_batches = micro_batches
        self.start_step = start_step

    def __len__(self) -> int:
        return (self.num_steps - self.start_step) * self.micro_batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self.start_step, self.num_steps):
            for micro_batch in range(self.micro_batches):
                start, stop = self.rows(micro_batch, self.rank)
                first = step * self.global_batch_size
                positions = np.arange(first + start, first + stop)
                indices = self.order.indices(positions)
                yield list(zip(positions.tolist(), indices.tolist(), strict=True))

    def rows(self, micro_batch: int, rank: int) -> tuple[int, int]:
        """Rows [start, stop) of the global batch that `rank` takes in `micro_batch`."""
        start, stop = _part(self.global_batch_size, micro_batch, self.micro_batches)
        rank_start, rank_stop = _part(stop - start, rank, self.world_size)
        return start + rank_start, start + rank_stop


def _part(size: int, part: int, num_parts: int) -> tuple[int, int]:
    """Bounds of one of `num_parts` contiguous parts whose sizes differ by at most 1."""
    return size * part // num_parts, size * (part + 1) // num_parts
