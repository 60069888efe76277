"""Profiles leave no trace, and what they predict is what a real step takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memopt.blocks import (
    ChainProfile,
    SegmentRunner,
    plan_segments,
    profile_segments,
    smallest_budget_bytes,
)
from memopt.errors import MemoptError
from memopt.live_bytes import LiveBytes


def measured_peak_bytes(
    net: nn.Module, forward: Callable[[Tensor], Tensor], images: Tensor, *, num_steps: int = 1
) -> int:
    """Peak of forward and backward passes that add up to one gradient."""
    net.zero_grad(set_to_none=True)
    with LiveBytes() as live:
        for _ in range(num_steps):
            output = forward(images)
            output.backward(torch.ones_like(output))
            del output
    return live.peak_bytes


def assert_predictions_hold(
    profile: ChainProfile,
    links: list[Any],
    net: nn.Module,
    images: Tensor,
    *,
    tolerance: float,
    autocast_dtype: torch.dtype | None = None,
) -> None:
    """At five budgets from floor to plain peak: measured <= predicted <= budget, closely."""
    floor = smallest_budget_bytes(profile)
    plain = plan_segments(profile, 2**60).plain_peak_bytes
    assert floor < plain
    for quarter in range(5):
        budget = floor + (plain - floor) * quarter // 4
        plan = plan_segments(profile, budget)
        measured = measured_peak_bytes(
            net,
            SegmentRunner(links, plan, autocast_dtype),
            images,
            num_steps=2 if profile.accumulates else 1,
        )
        assert measured <= plan.predicted_peak_bytes <= budget
        assert plan.predicted_peak_bytes <= measured * (1 + tolerance)


@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_prediction_bounds_the_measured_peak_closely(
    chains: Any, autocast_dtype: torch.dtype | None, memory_format: torch.memory_format
) -> None:
    net = chains.net().to(memory_format=memory_format)
    images = torch.randn(16, 3, 16, 16).contiguous(memory_format=memory_format)
    links = chains.links(net)
    profile = profile_segments(links, images, autocast_dtype=autocast_dtype)
    # The plan takes a segment's input to live through its whole backward pass; it may die just
    # before the end. That is one tensor: 9 % of this little net, next to nothing of a deep one.
    assert_predictions_hold(
        profile, links, net, images, tolerance=0.10, autocast_dtype=autocast_dtype
    )


def test_prediction_holds_when_gradients_accumulate(chains: Any) -> None:
    # Wide and few rows: gradients outweigh activations.
    net = chains.net(channels=64)
    images = torch.randn(2, 3, 16, 16)
    links = chains.links(net)
    profile = profile_segments(links, images, accumulates=True)
    assert_predictions_hold(profile, links, net, images, tolerance=0.02)
    plain = plan_segments(profile, 2**60).plain_peak_bytes
    single = plan_segments(profile_segments(links, images), 2**60).plain_peak_bytes
    assert plain > single


def test_smaller_batch_stays_below_the_plan(chains: Any) -> None:
    net = chains.net()
    images = torch.randn(16, 3, 16, 16)
    links = chains.links(net)
    profile = profile_segments(links, images)
    plan = plan_segments(profile, smallest_budget_bytes(profile))
    runner = SegmentRunner(links, plan)
    assert measured_peak_bytes(net, runner, images[:9].clone()) < plan.predicted_peak_bytes


def test_frozen_start_is_predicted_without_its_activations(chains: Any) -> None:
    net = chains.net(num_blocks=5)
    for name in ("stem", "block0", "block1", "block2"):
        net.get_submodule(name).requires_grad_(False)
    images = torch.randn(16, 3, 16, 16)
    links = chains.links(net)
    profile = profile_segments(links, images)
    assert [s.has_backward for s in profile.segments] == [False] * 4 + [True] * 3
    assert all(s.kept.saved_bytes == 0 for s in profile.segments[:4])
    assert_predictions_hold(profile, links, net, images, tolerance=0.02)


def test_shared_parameters_count_once(chains: Any) -> None:
    linear = nn.Linear(8, 8, bias=False)
    links = [chains.link(name, linear, (linear,)) for name in ("a", "b")]
    profile = profile_segments(links, torch.randn(4, 8))
    assert [s.gradient_bytes for s in profile.segments] == [0, 8 * 8 * 4]


def test_segment_that_changes_its_input_is_never_recomputed(chains: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.Tanh())
    links = chains.links(net)
    images = torch.randn(8, 3, 16, 16)
    profile = profile_segments(links, images)
    assert [s.recomputed is None for s in profile.segments] == [False, True, False, False]
    plan = plan_segments(profile, smallest_budget_bytes(profile))
    measured = measured_peak_bytes(net, SegmentRunner(links, plan), images)
    assert measured <= plan.predicted_peak_bytes


def test_profile_leaves_no_trace(chains: Any) -> None:
    net = chains.net()
    images = torch.randn(4, 3, 16, 16)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    gradients = [p.grad for p in net.parameters()]
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random_state, before = torch.get_rng_state(), images.clone()
    with torch.no_grad():
        profile_segments(chains.links(net), images)
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(images, before)
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert torch.all(gradient == 3.0)


def test_profile_leaves_no_trace_when_a_segment_fails(chains: Any) -> None:
    net = chains.net()
    net.block1.register_forward_hook(lambda module, args, output: 1 / 0)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        profile_segments(chains.links(net), torch.randn(4, 3, 16, 16))
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
    assert all(p.grad is None for p in net.parameters())


def test_empty_chain_is_refused() -> None:
    with pytest.raises(MemoptError, match="no segments"):
        profile_segments([], torch.ones(1))


def test_sync_batch_norm_is_refused(chains: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4))
    with pytest.raises(MemoptError, match="segment 1: SyncBatchNorm communicates"):
        profile_segments(chains.links(net), torch.randn(4, 4))


def test_hooked_parameters_are_refused(chains: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(MemoptError, match="segment 1: a hook is registered"):
        profile_segments(chains.links(net), torch.randn(4, 4))
