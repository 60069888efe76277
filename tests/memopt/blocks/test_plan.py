"""The planner against brute force over a literal simulation of what is alive when."""

from __future__ import annotations

import itertools
import pickle
import random
import time

import pytest

from memopt.blocks import (
    ChainProfile,
    PassBytes,
    SegmentProfile,
    plan_segments,
    smallest_budget_bytes,
)
from memopt.errors import MemoptError


def random_profile(rng: random.Random, num_segments: int) -> ChainProfile:
    segments = []
    num_frozen = rng.choice([0, 0, 0, 1, 2])
    for index in range(num_segments):
        output, saved, extra = rng.randint(0, 9), rng.randint(0, 30), rng.randint(0, 20)
        lean = rng.randint(0, 3)
        frozen = index < num_frozen
        kept = PassBytes(0 if frozen else saved, saved + output + extra, saved + extra)
        recomputed = PassBytes(lean, lean + output + extra, saved + output + extra + lean)
        segments.append(
            SegmentProfile(
                name=f"s{index}",
                output_bytes=output,
                gradient_bytes=0 if frozen else rng.randint(0, 5),
                kept=kept,
                recomputed=None if frozen or rng.random() < 0.15 else recomputed,
                has_backward=not frozen,
                forward_us=rng.randint(1, 12),
                backward_us=rng.randint(1, 24),
            )
        )
    return ChainProfile(tuple(segments), (2, 3), accumulates=rng.random() < 0.3)


def simulated_peak(profile: ChainProfile, recompute: tuple[bool, ...]) -> int:
    """Walks forward and then backward with a dictionary of what is alive."""
    segments, last = profile.segments, len(profile.segments) - 1
    alive: dict[tuple[str, int], int] = {}
    if profile.accumulates:
        alive = {("gradient", i): s.gradient_bytes for i, s in enumerate(segments)}
    peak = 0
    for i, segment in enumerate(segments):
        passes = segment.recomputed if recompute[i] else segment.kept
        assert passes is not None
        peak = max(peak, sum(alive.values()) + passes.forward_peak_bytes)
        alive["saved", i] = passes.saved_bytes
        alive["output", i] = segment.output_bytes
        if i and not segment.has_backward:
            del alive["output", i - 1]
    alive["gradient of the output", last] = segments[last].output_bytes
    for i in range(last, -1, -1):
        segment = segments[i]
        if not segment.has_backward:
            break
        passes = segment.recomputed if recompute[i] else segment.kept
        assert passes is not None
        del alive["saved", i]
        if i < last:
            del alive["output", i]
        peak = max(peak, sum(alive.values()) + passes.backward_peak_bytes)
        alive["gradient", i] = segment.gradient_bytes
    return peak


def every_plan(profile: ChainProfile) -> list[tuple[bool, ...]]:
    choices = [(False,) if s.recomputed is None else (False, True) for s in profile.segments]
    return list(itertools.product(*choices))


def cost_us(profile: ChainProfile, recompute: tuple[bool, ...]) -> int:
    return sum(s.forward_us for s, again in zip(profile.segments, recompute, strict=True) if again)


@pytest.mark.parametrize("seed", range(40))
def test_plan_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    profile = random_profile(rng, rng.randint(1, 7))
    peaks = {plan: simulated_peak(profile, plan) for plan in every_plan(profile)}
    floor = min(peaks.values())
    plain = peaks[(False,) * len(profile.segments)]
    assert smallest_budget_bytes(profile) == floor
    for budget in {floor, plain, *(rng.randint(floor, plain) for _ in range(5))}:
        plan = plan_segments(profile, budget)
        best_us = min(cost_us(profile, p) for p, peak in peaks.items() if peak <= budget)
        assert cost_us(profile, plan.recompute) == best_us
        assert plan.predicted_peak_bytes == peaks[plan.recompute] <= budget
        assert plan.plain_peak_bytes == plain
        step_us = sum(s.forward_us + s.backward_us for s in profile.segments)
        assert plan.predicted_overhead == pytest.approx(best_us / step_us)


@pytest.mark.parametrize("seed", range(5))
def test_smaller_budget_never_costs_less(seed: int) -> None:
    profile = random_profile(random.Random(seed), 30)
    floor = smallest_budget_bytes(profile)
    overheads = [plan_segments(profile, floor + extra).predicted_overhead for extra in range(200)]
    assert overheads == sorted(overheads, reverse=True)


def test_budget_that_holds_everything_recomputes_nothing() -> None:
    profile = random_profile(random.Random(1), 20)
    plan = plan_segments(profile, 10**30)
    assert plan.recomputed_names == ()
    assert plan.predicted_overhead == 0.0
    assert plan.predicted_peak_bytes == plan.plain_peak_bytes


def test_too_small_budget_names_the_floor_and_what_sets_it() -> None:
    small = SegmentProfile("small", 10, 0, PassBytes(20, 30, 30), PassBytes(0, 30, 40), True, 1, 2)
    large = SegmentProfile(
        "large", 10, 0, PassBytes(500, 600, 3000), PassBytes(0, 600, 3000), True, 1, 2
    )
    profile = ChainProfile((small, large, small), (8, 3, 112, 112), accumulates=False)
    # Backward of large: two inputs' worth of outputs (10), the final output and its gradient (20).
    with pytest.raises(MemoptError, match=r"set by segment large") as caught:
        plan_segments(profile, 1000)
    message = str(caught.value)
    assert "(3030 bytes)" in message
    assert "[8, 3, 112, 112]" in message
    assert "\n" not in message
    assert plan_segments(profile, 3030).recomputed_names == ("small",)


@pytest.mark.parametrize("seed", range(5))
def test_reserved_bytes_come_off_the_budget_and_show_in_every_peak(seed: int) -> None:
    profile = random_profile(random.Random(seed), 12)
    budget = smallest_budget_bytes(profile) + 50
    without, reserved = plan_segments(profile, budget), plan_segments(profile, budget + 700, 700)
    assert reserved.recompute == without.recompute
    assert reserved.predicted_peak_bytes == without.predicted_peak_bytes + 700
    assert reserved.plain_peak_bytes == without.plain_peak_bytes + 700
    with pytest.raises(MemoptError, match=f"{smallest_budget_bytes(profile) + 700} bytes"):
        plan_segments(profile, budget, 700)


def test_long_chain_is_planned_quickly() -> None:
    profile = random_profile(random.Random(3), 2000)
    floor = smallest_budget_bytes(profile)
    start = time.perf_counter()
    plan = plan_segments(profile, floor + floor // 4)
    # About 0.3 s on one core; the bound only catches a planner that grows faster than the chain.
    assert time.perf_counter() - start < 10
    assert plan.predicted_peak_bytes <= plan.budget_bytes


def test_profile_and_plan_are_plain_data() -> None:
    profile = random_profile(random.Random(4), 6)
    plan = plan_segments(profile, smallest_budget_bytes(profile))
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert plan_segments(pickle.loads(pickle.dumps(profile)), plan.budget_bytes) == plan
