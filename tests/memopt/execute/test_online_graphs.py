"""Graphs that are kept, differentiated in parts or twice, shared by passes, or let go."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from memopt.execute.online import Online
from tests.memopt.execute.online_steps import (
    Residual,
    backward,
    compare,
    conv_net,
    forward,
    images,
    vectors,
)


def test_a_graph_kept_runs_backward_twice() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        output = forward(model, online, images())
        backward(output, retain_graph=True)
        backward(output)

    online, _ = compare(conv_net(), step=step)
    assert online.totals.num_recomputes > 0


def test_gradients_of_some_inputs_only() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        x = images().requires_grad_()
        output = forward(model, online, x)
        weight = next(model.parameters())
        (found,) = torch.autograd.grad(output.sum(), [x], retain_graph=True)
        (weight.grad,) = torch.autograd.grad(output.sum() + found.sum(), [weight])

    compare(conv_net(), step=step)


def test_gradients_of_gradients() -> None:
    def step(model: nn.Module, online: Online | None) -> None:
        x = images().requires_grad_()
        output = forward(model, online, x)
        (found,) = torch.autograd.grad(output.sum(), [x], create_graph=True)
        (output.mean() + found.square().sum()).backward()

    online, _ = compare(conv_net(), step=step)
    assert online.totals.num_recomputes > 0


def test_several_forward_passes_wait_for_one_backward() -> None:
    """They share one budget, and one may be evicted from for the other."""

    batches = [images(), images() + 1]

    def step(model: nn.Module, online: Online | None) -> None:
        first, second = [forward(model, online, batch) for batch in batches]
        backward(first + second)

    online, peaks = compare(conv_net(), share=0.5, step=step, num_steps=3)
    outside = 2 * 4 * 4 * 5  # the sum, and its gradient
    assert max(peaks[1:]) <= online.budget_bytes + outside
    assert online.totals.num_recomputes > 0


def test_a_pass_reads_what_another_made() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(16, 0.0) for _ in range(4)])
    x = vectors(8, 6, 16)

    def step(model: nn.Module, online: Online | None) -> None:
        backward(forward(model, online, forward(model, online, x)))

    online, _ = compare(model, step=step)
    assert online.totals.num_recomputes > 0


def test_the_program_may_keep_what_it_likes() -> None:
    model = conv_net()
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda _, __, output: seen.append((output, output.clone())))
    online = Online("dtr", 1)
    backward(forward(model, online, images()))
    assert all(torch.equal(output, then) for output, then in seen)


def test_a_pass_goes_with_its_graph() -> None:
    """Without backward too, and whatever the graph holds."""
    online = Online("dtr", 1)
    model = conv_net()
    gc.collect()
    gc.disable()
    try:
        online_pass = online.new_pass()
        with online_pass.hooks():
            output = model(images())
        online_pass.close(output)
        gone = weakref.ref(online_pass)
        del online_pass
        assert gone() is not None
        del output
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_grows_over_steps() -> None:
    model, online = conv_net(), Online("dte", 100_000)
    sizes = []
    for _ in range(4):
        backward(forward(model, online, images()))
        gc.collect()
        sizes.append(len(gc.get_objects()))
        for parameter in model.parameters():
            parameter.grad = None
    assert abs(sizes[-1] - sizes[-2]) < 20
