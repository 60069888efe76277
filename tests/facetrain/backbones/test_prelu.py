"""The lean PReLU against PyTorch's, in fp64, in several sizes and types."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from facetrain.backbones.prelu import PReLU
from memopt.live_bytes import LiveBytes


def run(module: nn.PReLU, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    output = module(x)
    output.backward(gradient)
    assert x.grad is not None
    assert module.weight.grad is not None
    return output.detach(), x.grad, module.weight.grad


@pytest.mark.parametrize("shape", [(3, 5), (4, 7, 6, 5), (5, 8, 300, 300), (19, 8, 270, 250)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_it_is_prelu(shape: tuple[int, ...], channels_last: bool) -> None:
    torch.manual_seed(0)
    x, gradient = torch.randn(2, *shape)
    if channels_last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    ours, theirs = PReLU(shape[1]), nn.PReLU(shape[1])
    exact = nn.PReLU(shape[1]).double()
    with torch.no_grad():
        for module in (ours, theirs, exact):
            module.weight.copy_(torch.linspace(-0.5, 0.7, shape[1]))
    output, of_x, of_weight = run(ours, x, gradient)
    expected = run(theirs, x, gradient)
    assert torch.equal(output, expected[0])
    assert torch.equal(of_x, expected[1])
    assert of_x.stride() == expected[1].stride()
    _, _, of_weight_exact = run(exact, x.double(), gradient.double())
    torch.testing.assert_close(of_weight.double(), of_weight_exact, rtol=1e-5, atol=1e-4)


def test_backward_takes_one_tensor_of_the_inputs_size() -> None:
    x = torch.randn(8, 8, 300, 300)
    peaks = []
    for module in (PReLU(8), nn.PReLU(8)):
        output = module(x.requires_grad_())
        gradient = torch.ones_like(output)
        x.grad = None
        with LiveBytes() as live:
            output.backward(gradient)
        peaks.append(live.peak_bytes / x.nbytes)
    assert peaks[0] < 1.5
    assert peaks[1] >= 2


def test_types_under_autocast_and_state_are_prelus() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    ours, theirs = PReLU(3), nn.PReLU(3)
    ours.load_state_dict(theirs.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            assert torch.equal(ours(given), theirs(given))
            assert ours(given).dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
