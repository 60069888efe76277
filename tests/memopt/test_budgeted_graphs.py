"""Graphs under a budget that are kept, differentiated in parts, waiting, or very deep."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from memopt.controlled import controlled
from memopt.execute import PlannedPass, Program
from memopt.plan import trace
from memopt.schedule import Gap, Lives, Schedule
from tests.memopt.budgeted_steps import (
    assert_same,
    deep,
    gradients,
    held,
    rows,
)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("share", [1.0, 1.7])
def test_kept_graphs_are_differentiated_again(in_place: bool, share: float) -> None:
    model, x = deep(), rows()
    if in_place:
        model = nn.Sequential(*(nn.ReLU(inplace=True) if type(m) is nn.Tanh else m for m in model))
    twin, _ = held(model, x, share=share)
    for net in (model, twin):
        output = net(x).square().sum()
        output.backward(retain_graph=True)
        output.backward(retain_graph=True)
        output.backward()
    assert_same(gradients(model), gradients(twin))


def test_gradients_of_some_inputs_and_of_the_gradient() -> None:
    model, x = deep(), rows().requires_grad_()
    twin, _ = held(model, x)
    found = []
    for net in (model, twin):
        output = net(x).square().sum()
        some = torch.autograd.grad(output, [net[0].weight, x], retain_graph=True)
        (first,) = torch.autograd.grad(output, [x], create_graph=True)
        second = torch.autograd.grad(first.square().sum(), [net[3].weight, x])
        found.append([*some, *second])
    assert_same(*found)


def test_several_forward_passes_wait_for_their_backward() -> None:
    model, x = deep(), rows()
    twin, _ = held(model, x)
    for net in (model, twin):
        first, second = net(x), net(x.flip(0))
        (first - second.detach()).square().sum().backward()
        second.sum().backward()
    assert_same(gradients(model), gradients(twin))


def test_a_caller_sees_valid_data_in_what_it_holds() -> None:
    model, x = deep(), rows()
    seen: list[Tensor] = []
    model[5].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(x)
    twin, _ = held(model, x)
    twin(x).sum().backward()
    assert_same([seen[0]], [seen[-1]])
    assert_same([seen[0]], [torch.tanh(model[4](model[:4](x)))])


class Chain(nn.Module):
    """2,000 operators in a row."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2000):
            x = torch.sin(x)
        return x


@pytest.mark.slow
def test_a_deep_chain_is_recomputed_without_recursion() -> None:
    x = rows(4, 8).requires_grad_()
    step = controlled(trace(Chain(), (x,)))
    first = step.graph.unpacks[0]
    # Everything is made again, from the input, before the first node of backward.
    drops = {
        Gap(gap.value, gap.start, first)
        for gaps in Lives(step.graph).gaps
        for gap in gaps
        if gap.start < first - 1
    }
    program = Program(step, Schedule(frozenset(drops)))
    assert max(len(group.steps) for group in program.groups) > 1900
    (resting,) = program.resting
    found = []
    for is_planned in (False, True):
        forward_pass = PlannedPass(program, {resting: x.detach()})
        with forward_pass.hooks() if is_planned else nullcontext():
            output = Chain()(x)
        forward_pass.close()
        (gradient,) = torch.autograd.grad(output.sum(), [x])
        found.append([gradient])
    assert_same(*found)
