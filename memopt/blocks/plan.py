"""Which segments of a chain to recompute so that it fits a budget at the least extra time.

Memory of the chain, in bytes above the resting state, with s_j what segment j keeps (its
`saved_bytes`, kept or recomputed), b_j its output, g_j its parameter gradients:

    forward of i  = s_0 + .. + s_(i-1)  +  b_0 + .. + b_(i-1)  +  forward peak of i
    backward of i = the same two sums   +  g_(i+1) + .. + g_n  +  2 b_n  +  backward peak of i

2 b_n are the output and its gradient, which the caller may hold; gradients that exist beforehand
are added to every line. An input is taken to live through the whole backward pass of its segment,
so the prediction errs, if at all, upwards.

Both lines bound the same prefix sum of s, and a smaller prefix is never worse for what follows. So
dynamic programming over the recompute time spent, keeping for each the smallest prefix, is exact: a
knapsack with a capacity at each item. Bytes are never rounded; only times are, to 1/16384 of the
whole, far below what timing them can resolve.

Pure and deterministic: every rank that has the profile makes the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memopt.blocks.profile import ChainProfile, PassBytes, SegmentProfile
from memopt.errors import MemoptError
from memopt.units import format_bytes

_NUM_TICKS = 2**14
_UNREACHED = np.iinfo(np.int64).max // 2


@dataclass(frozen=True)
class SegmentPlan:
    """Which segments are recomputed, and what is expected of it.

    Attributes:
        names: of the segments, in forward order.
        recompute: one flag a segment.
        budget_bytes: what the plan was asked to stay within.
        plain_peak_bytes: expected peak with nothing recomputed.
        predicted_peak_bytes: expected peak under the plan; at most the budget.
        predicted_overhead: recompute time over the time of a plain forward and backward pass.
    """

    names: tuple[str, ...]
    recompute: tuple[bool, ...]
    budget_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    predicted_overhead: float

    @property
    def recomputed_names(self) -> tuple[str, ...]:
        """Names of the segments that are recomputed."""
        return tuple(name for name, again in zip(self.names, self.recompute, strict=True) if again)


def plan_segments(profile: ChainProfile, budget_bytes: int, reserved_bytes: int = 0) -> SegmentPlan:
    """The plan with the least recompute time whose predicted peak is within the budget.

    Args:
        profile: what each segment costs.
        budget_bytes: peak above the resting state (weights, buffers, optimizer, input batch) that
            forward and backward may reach, parameter gradients included.
        reserved_bytes: of the budget, for what runs beside the chain, such as buckets of gradients
            under way to other ranks; part of every predicted peak.

    Raises:
        MemoptError: the budget is below what the chain needs with everything recomputed.
    """
    floor_bytes = smallest_budget_bytes(profile) + reserved_bytes
    if budget_bytes < floor_bytes:
        raise MemoptError(_too_small_message(profile, budget_bytes, floor_bytes))
    chain = _chain(profile)
    plain_peak_bytes = max(_peaks_bytes(chain, (False,) * len(chain)))
    recompute = _least_time(chain, min(budget_bytes - reserved_bytes, plain_peak_bytes))
    recompute_us = sum(
        link.segment.forward_us for link, again in zip(chain, recompute, strict=True) if again
    )
    step_us = sum(link.segment.forward_us + link.segment.backward_us for link in chain)
    return SegmentPlan(
        names=tuple(link.segment.name for link in chain),
        recompute=recompute,
        budget_bytes=budget_bytes,
        plain_peak_bytes=plain_peak_bytes + reserved_bytes,
        predicted_peak_bytes=max(_peaks_bytes(chain, recompute)) + reserved_bytes,
        predicted_overhead=recompute_us / max(step_us, 1),
    )


def smallest_budget_bytes(profile: ChainProfile) -> int:
    """The smallest budget that `plan_segments` can meet for this chain."""
    chain = _chain(profile)
    too_little, enough = 0, max(_peaks_bytes(chain, (False,) * len(chain)))
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        if _least_memory(chain, middle) is None:
            too_little = middle
        else:
            enough = middle
    return enough


class _Link(NamedTuple):
    """A segment, and what lies beside it in memory whatever the plan."""

    segment: SegmentProfile
    beside_forward_bytes: int
    beside_backward_bytes: int

    def room_needed_bytes(self, passes: PassBytes) -> int:
        """Least budget in which it runs, were nothing kept of the segments before it."""
        forward_bytes = self.beside_forward_bytes + passes.forward_peak_bytes
        if not self.segment.has_backward:
            return forward_bytes
        return max(forward_bytes, self.beside_backward_bytes + passes.backward_peak_bytes)


def _chain(profile: ChainProfile) -> list[_Link]:
    segments = profile.segments
    gradient_bytes = [segment.gradient_bytes for segment in segments]
    existing_bytes = sum(gradient_bytes) if profile.accumulates else 0
    chain = []
    inputs_bytes = existing_bytes
    for index, segment in enumerate(segments):
        input_bytes = segments[index - 1].output_bytes if index else 0
        if segment.has_backward:
            inputs_bytes += input_bytes
            passing_bytes = 0
        else:
            # In a frozen start no input outlives the forward pass of the segment it goes into.
            passing_bytes = input_bytes
        later_gradients_bytes = 0 if profile.accumulates else sum(gradient_bytes[index + 1 :])
        chain.append(
            _Link(
                segment,
                inputs_bytes + passing_bytes,
                inputs_bytes + later_gradients_bytes + 2 * segments[-1].output_bytes,
            )
        )
    return chain


def _peaks_bytes(chain: list[_Link], recompute: tuple[bool, ...]) -> list[int]:
    """The chain's peak while each segment runs, forward or backward."""
    peaks, prefix_bytes = [], 0
    for link, again in zip(chain, recompute, strict=True):
        passes = link.segment.recomputed if again else link.segment.kept
        assert passes is not None
        peaks.append(prefix_bytes + link.room_needed_bytes(passes))
        prefix_bytes += passes.saved_bytes
    return peaks


def _least_memory(chain: list[_Link], budget_bytes: int) -> tuple[bool, ...] | None:
    """The plan within the budget that keeps least of each segment; None if there is no plan.

    A smaller prefix serves everything after it, so taking the smallest one each time is exact.
    """
    recompute, prefix_bytes = [], 0
    for link in chain:
        fitting = [
            (passes.saved_bytes, again)
            for again, passes in enumerate((link.segment.kept, link.segment.recomputed))
            if passes is not None and prefix_bytes + link.room_needed_bytes(passes) <= budget_bytes
        ]
        if not fitting:
            return None
        saved_bytes, again = min(fitting)
        recompute.append(bool(again))
        prefix_bytes += saved_bytes
    return tuple(recompute)


def _least_time(chain: list[_Link], budget_bytes: int) -> tuple[bool, ...]:
    """The plan within the budget that recomputes for the shortest time; one must exist."""
    total_us = sum(link.segment.forward_us for link in chain)
    tick_us = max(1, total_us // _NUM_TICKS)
    # At least one each: no recomputation is free.
    ticks = [max(1, -(-link.segment.forward_us // tick_us)) for link in chain]
    # prefix_bytes[t]: least kept of the segments so far, with t ticks of recomputation among them.
    prefix_bytes = np.full(sum(ticks) + 1, _UNREACHED)
    prefix_bytes[0] = 0
    choices = []
    for link, num_ticks in zip(chain, ticks, strict=True):
        kept = _extended(prefix_bytes, link, link.segment.kept, budget_bytes)
        again = np.full_like(prefix_bytes, _UNREACHED)
        if link.segment.recomputed is not None:
            longer = _extended(prefix_bytes, link, link.segment.recomputed, budget_bytes)
            again[num_ticks:] = longer[: len(longer) - num_ticks]
        choices.append(again < kept)
        prefix_bytes = np.minimum(kept, again)
    tick = int(np.argmax(prefix_bytes < _UNREACHED))
    assert prefix_bytes[tick] < _UNREACHED
    recompute = []
    for choice, num_ticks in zip(reversed(choices), reversed(ticks), strict=True):
        recompute.append(bool(choice[tick]))
        tick -= num_ticks * recompute[-1]
    return tuple(reversed(recompute))


def _extended(
    prefix_bytes: np.ndarray, link: _Link, passes: PassBytes, budget_bytes: int
) -> np.ndarray:
    fits = prefix_bytes <= budget_bytes - link.room_needed_bytes(passes)
    return np.where(fits, prefix_bytes + passes.saved_bytes, _UNREACHED)


def _too_small_message(profile: ChainProfile, budget_bytes: int, floor_bytes: int) -> str:
    chain = _chain(profile)
    recompute = _least_memory(chain, floor_bytes)
    assert recompute is not None
    peaks = _peaks_bytes(chain, recompute)
    binding = chain[peaks.index(max(peaks))].segment.name
    return (
        f"memory budget {format_bytes(budget_bytes)} is too small: the least for an input of shape "
        f"{list(profile.input_shape)} is {format_bytes(floor_bytes, round_up=True)} "
        f"({floor_bytes} bytes), set by segment {binding}; raise the budget or lower the batch size"
    )
