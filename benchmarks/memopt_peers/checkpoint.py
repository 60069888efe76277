"""torch.utils.checkpoint, non-reentrant: links grouped into segments (Chen et al. 2016).

As in `checkpoint_sequential`, the last segment is kept: it would be recomputed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from memopt_measure import Forward
from memopt_networks import Link, links, run_links
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from memopt_peers.row import Row, RowOptions

#: Of a chain's length, the number of segments.
NumSegments = Callable[[int], int]


def rows(options: RowOptions) -> dict[str, Row]:
    """Given numbers of segments, the square root of the number of links, and every link."""
    cuts: dict[str, NumSegments] = {
        f"checkpoint, {number} segments": partial(min, number) for number in options.segments
    }
    cuts["checkpoint, sqrt(n) segments"] = lambda length: round(math.sqrt(length))
    cuts["checkpoint, every block"] = every_link
    return {label: Row(partial(checkpointed, num_segments=cut)) for label, cut in cuts.items()}


def checkpointed(
    model: nn.Module,
    plain_peak_bytes: int,
    num_segments: NumSegments,
    context_fn: Callable[[], Any] = noop_context_fn,
) -> Forward:
    """The model's forward pass in segments."""
    chain = links(model)
    segments = grouped(chain, num_segments(len(chain)))

    def forward(x: Tensor) -> Tensor:
        state: Any = x
        for segment in segments[:-1]:
            run = partial(_run, segment)
            given = state if isinstance(state, tuple) else (state,)
            state = checkpoint(run, *given, use_reentrant=False, context_fn=context_fn)
        return run_links(segments[-1], state)

    return forward


def every_link(length: int) -> int:
    """A segment for each."""
    return length


def grouped(chain: Sequence[Link], num_segments: int) -> list[Sequence[Link]]:
    """Neighbours together, sizes differing by at most one."""
    ends = [round(len(chain) * part / num_segments) for part in range(num_segments + 1)]
    return [chain[start:end] for start, end in pairwise(ends)]


def _run(segment: Sequence[Link], *state: Tensor) -> Any:
    return run_links(segment, state)
