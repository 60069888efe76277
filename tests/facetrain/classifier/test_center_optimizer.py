"""Steps of rows in use equal one torch optimizer per row, stepped when its row is in use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from facetrain.classifier import CenterAdamW, CenterOptimizer, CenterSGD

ROWS, SIZE, STEPS = 9, 5, 7
USED = [[0, 3, 4], [1], [0, 1, 2, 3, 4, 5, 6, 7, 8], [], [4, 8], [0, 8], [2, 3, 4]]

Make = Callable[[], CenterOptimizer]
MakeTorch = Callable[[nn.Parameter], torch.optim.Optimizer]


def _gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn((ROWS, SIZE), generator=generator) for _ in range(STEPS)]


def _initial() -> torch.Tensor:
    return torch.randn((ROWS, SIZE), generator=torch.Generator().manual_seed(2))


def _per_row(make: MakeTorch, rates: list[float]) -> torch.Tensor:
    """In float64, each row a parameter with an optimizer of its own."""
    rows = [nn.Parameter(row.double()) for row in _initial()]
    optimizers = [make(row) for row in rows]
    for used, gradient, lr in zip(USED, _gradients(), rates, strict=True):
        for number in used:
            rows[number].grad = gradient[number].double()
            optimizers[number].param_groups[0]["lr"] = lr
            optimizers[number].step()
    return torch.stack([row.detach() for row in rows])


@pytest.mark.parametrize(
    ("make", "make_torch"),
    [
        (
            lambda: CenterSGD(0.1, 0.9, 5e-2),
            lambda p: torch.optim.SGD([p], 0.1, momentum=0.9, weight_decay=5e-2),
        ),
        (lambda: CenterSGD(0.1, 0.0, 0.0), lambda p: torch.optim.SGD([p], 0.1)),
        (
            lambda: CenterAdamW(0.1, (0.8, 0.95), 0.2),
            lambda p: torch.optim.AdamW([p], 0.1, (0.8, 0.95), weight_decay=0.2),
        ),
    ],
)
def test_rows_in_use_step_like_one_torch_optimizer_per_row(
    make: Make, make_torch: MakeTorch
) -> None:
    rates = [0.1 / (1 + step) for step in range(STEPS)]
    centers, optimizer = _initial(), make()
    optimizer.attach(centers)
    for used, gradient, lr in zip(USED, _gradients(), rates, strict=True):
        optimizer.lr = lr
        rows = torch.tensor(used, dtype=torch.int64)
        optimizer.step(centers, rows, gradient[rows].clone())
    # fp32 against float64 over seven steps of numbers around 1.
    torch.testing.assert_close(centers.double(), _per_row(make_torch, rates), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("make", [lambda: CenterSGD(0.1), lambda: CenterAdamW(0.1)])
def test_a_slice_steps_like_the_same_rows_by_number(make: Make) -> None:
    found = []
    for rows in (slice(2, 6), torch.arange(2, 6)):
        centers, optimizer = _initial(), make()
        optimizer.attach(centers)
        for gradient in _gradients():
            optimizer.step(centers, rows, gradient[2:6].clone())
        found.append((centers, optimizer.state))
    assert torch.equal(found[0][0], found[1][0])
    for name, values in found[0][1].items():
        assert torch.equal(values, found[1][1][name])


def test_bf16_momentum_is_the_fp32_one_rounded_each_step() -> None:
    centers, optimizer = _initial(), CenterSGD(0.1, 0.9, 5e-2, torch.bfloat16)
    optimizer.attach(centers)
    assert optimizer.state["momentum"].dtype == torch.bfloat16
    expected, momentum = _initial(), torch.zeros(ROWS, SIZE)
    for gradient in _gradients():
        optimizer.step(centers, slice(0, ROWS), gradient.clone())
        step = 0.9 * momentum + gradient + 5e-2 * expected
        expected = expected - 0.1 * step
        momentum = step.bfloat16().float()
    torch.testing.assert_close(centers, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [CenterSGD(0.1), CenterSGD(0.1, 0.0), CenterSGD(0.1, 0.9, 0.0, torch.bfloat16), CenterAdamW(1)],
)
def test_state_takes_the_bytes_it_says(optimizer: CenterOptimizer) -> None:
    optimizer.attach(_initial())
    taken = sum(values.nbytes for values in optimizer.state.values())
    assert taken == ROWS * optimizer.state_bytes_per_row(SIZE)
