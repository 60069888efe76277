"""Recomputed training equals plain training to the bit, whatever the segments hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memopt.blocks import SegmentPlan, SegmentRunner
from memopt.errors import MemoptError


def plan_for(links: list[Any], recompute: Callable[[str], bool]) -> SegmentPlan:
    names = tuple(link.name for link in links)
    return SegmentPlan(names, tuple(map(recompute, names)), 0, 0, 0, 0.0)


def step(
    net: nn.Module, forward: Callable[[Tensor], Tensor], images: Tensor
) -> tuple[Tensor, list[Tensor], dict[str, Tensor], Tensor]:
    """Output, gradients, buffers and random state after two training steps."""
    torch.manual_seed(7)
    for _ in range(2):
        net.zero_grad(set_to_none=True)
        output = forward(images)
        output.square().sum().backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return output.detach(), gradients, dict(net.named_buffers()), torch.get_rng_state()


def assert_equal_to_the_bit(ours: Any, plain: Any) -> None:
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    "recompute",
    [lambda name: True, lambda name: name.startswith("block"), lambda name: name == "head"],
    ids=["all", "blocks", "head"],
)
@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_step_equals_plain(
    chains: Any,
    recompute: Callable[[str], bool],
    autocast_dtype: torch.dtype | None,
    memory_format: torch.memory_format,
) -> None:
    plain_net = chains.net().to(memory_format=memory_format)
    net = copy.deepcopy(plain_net)
    images = torch.randn(4, 3, 16, 16).contiguous(memory_format=memory_format)

    def plain_forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast_dtype is not None):
            return plain_net(x)

    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, recompute), autocast_dtype)
    assert_equal_to_the_bit(step(net, runner, images), step(plain_net, plain_forward, images))
    counters = [b for name, b in net.named_buffers() if name.endswith("num_batches_tracked")]
    assert [int(counter) for counter in counters] == [2] * 7


def test_outer_autocast_reaches_the_recomputation(chains: Any) -> None:
    plain_net = chains.net()
    net = copy.deepcopy(plain_net)
    images = torch.randn(4, 3, 16, 16)
    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, lambda name: True))

    def under_autocast(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return forward(x)

        return call

    assert_equal_to_the_bit(
        step(net, under_autocast(runner), images),
        step(plain_net, under_autocast(plain_net), images),
    )


def test_frozen_batch_norm_recomputes_with_its_statistics(chains: Any) -> None:
    plain_net = chains.net()
    for module in plain_net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.eval()
    net = copy.deepcopy(plain_net)
    images = torch.randn(4, 3, 16, 16)
    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, lambda name: True))
    assert_equal_to_the_bit(step(net, runner, images), step(plain_net, plain_net, images))


def test_two_forwards_before_one_backward_and_a_retained_graph(chains: Any) -> None:
    plain_net = chains.net()
    net = copy.deepcopy(plain_net)
    first, second = torch.randn(2, 4, 3, 16, 16).unbind()
    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, lambda name: True))
    results = []
    for model, forward in ((net, runner), (plain_net, plain_net)):
        torch.manual_seed(3)
        loss = (forward(first) * forward(second)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        results.append((loss, gradients, dict(model.named_buffers()), torch.get_rng_state()))
    assert_equal_to_the_bit(*results)


def test_shared_segment_runs_twice(chains: Any) -> None:
    torch.manual_seed(0)
    plain_net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
    net = copy.deepcopy(plain_net)
    x = torch.randn(5, 6)
    links = [chains.link(name, net, (net,)) for name in ("once", "again")]
    runner = SegmentRunner(links, plan_for(links, lambda name: True))
    assert_equal_to_the_bit(
        step(net, runner, x), step(plain_net, lambda x: plain_net(plain_net(x)), x)
    )


def test_parameter_changed_before_the_backward_pass_is_an_error(chains: Any) -> None:
    net = chains.net()
    links = chains.links(net)
    output = SegmentRunner(links, plan_for(links, lambda name: True))(torch.randn(4, 3, 16, 16))
    with torch.no_grad():
        net.block1.layers[1].weight.add_(1)
    with pytest.raises(MemoptError, match="segment block1: a parameter changed"):
        output.sum().backward()


def test_failed_recomputation_leaves_buffers_and_the_next_step_right(chains: Any) -> None:
    plain_net = chains.net()
    net = copy.deepcopy(plain_net)
    images = torch.randn(4, 3, 16, 16)
    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, lambda name: True))
    buffers = dict(net.named_buffers())
    output = runner(images)
    handle = net.block1.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    handle.remove()
    del output
    assert all(buffer is buffers[name] for name, buffer in net.named_buffers())
    plain_net.load_state_dict(net.state_dict())
    assert_equal_to_the_bit(step(net, runner, images), step(plain_net, plain_net, images))


def test_intermediate_held_by_the_caller_stays_valid(chains: Any) -> None:
    class Keeps(nn.Module):
        seen: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x.sin()
            return self.seen.exp()

    module = Keeps()
    links = [chains.link("keeps", module, (module,))]
    x = torch.randn(9, requires_grad=True)
    output = SegmentRunner(links, plan_for(links, lambda name: True))(x)
    held = module.seen
    output.sum().backward()
    assert_equal_to_the_bit(held.detach(), x.detach().sin())
    assert x.grad is not None
    assert_equal_to_the_bit(x.grad, (x.sin().exp() * x.cos()).detach())


def test_without_gradients_nothing_is_kept(chains: Any) -> None:
    net = chains.net()
    links = chains.links(net)
    with torch.no_grad():
        output = SegmentRunner(links, plan_for(links, lambda name: True))(torch.ones(4, 3, 16, 16))
    assert not output.requires_grad


def test_chain_of_a_thousand_segments_needs_no_deep_stack(chains: Any) -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Tanh(), nn.Linear(2, 2)) for _ in range(1000)))
    plain_net = copy.deepcopy(net)
    links = chains.links(net)
    runner = SegmentRunner(links, plan_for(links, lambda name: True))
    x = torch.randn(3, 2)
    runner(x).sum().backward()
    plain_net(x).sum().backward()
    assert_equal_to_the_bit(
        [p.grad for p in net.parameters()], [p.grad for p in plain_net.parameters()]
    )


def test_plan_of_another_chain_is_refused(chains: Any) -> None:
    plan = plan_for(chains.links(chains.net(num_blocks=2)), lambda name: True)
    with pytest.raises(MemoptError, match="profile and plan this model"):
        SegmentRunner(chains.links(chains.net(num_blocks=3)), plan)
