"""The learning rate of every step, and what an optimizer state is restored to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from facetrain.config import OptimConfig
from facetrain.optim import (
    LrSchedule,
    build_optimizer,
    optimizer_state,
    restore_optimizer_state,
    set_lr,
)


def test_schedule_follows_from_data_and_batch() -> None:
    config = OptimConfig(epochs=4, global_batch_size=256, lr=0.1, warmup_epochs=1)
    schedule = LrSchedule.from_config(config, num_images=1000)
    assert schedule.peak_lr == pytest.approx(0.1 * 256 / 1024)
    assert schedule.num_steps == math.ceil(4 * 1000 / 256) == 16
    assert schedule.warmup_steps == round(1000 / 256) == 4
    assert "1,000 images x 4 epochs / 256 a step (2 processes) = 16 steps" in schedule.describe(
        config, 1000, world_size=2
    )


@pytest.mark.parametrize(
    ("warmup_epochs", "expected"), [(0, "0 warm-up steps"), (0.25, "1 warm-up step,")]
)
def test_one_warmup_step_is_singular(warmup_epochs: float, expected: str) -> None:
    config = OptimConfig(epochs=4, global_batch_size=256, warmup_epochs=warmup_epochs)
    assert expected in LrSchedule.from_config(config, 1024).describe(config, 1024, world_size=1)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_lr_rises_to_its_peak_then_falls_as_named(kind: str) -> None:
    schedule = LrSchedule(kind, peak_lr=0.2, warmup_steps=4, num_steps=20)
    rates = [schedule.lr(step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    for step in range(4, 20):
        done = (step - 4) / 16
        expected = {
            "linear": 0.2 * (1 - done),
            "cosine": 0.1 * (1 + math.cos(math.pi * done)),
            "constant": 0.2,
        }[kind]
        assert rates[step] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        (OptimConfig(momentum=0.9), ["momentum_buffer"]),
        (OptimConfig(optimizer="adamw", lr=0.01), ["exp_avg", "exp_avg_sq", "step"]),
    ],
)
def test_restored_optimizer_goes_on_as_if_uninterrupted(
    config: OptimConfig, slots: list[str]
) -> None:
    def network() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(1)
        backbone = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return backbone, nn.Linear(4, 2)

    def step(backbone: nn.Module, head: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        images = torch.randn((2, 3, 3, 3), generator=torch.Generator().manual_seed(2))
        optimizer.zero_grad()
        head(backbone(images).flatten(1)).square().sum().backward()
        optimizer.step()

    backbone, head = network()
    optimizer = build_optimizer([*backbone.parameters(), *head.parameters()], config)
    set_lr(optimizer, 0.05)
    step(backbone, head, optimizer)
    weights = {name: value.clone() for name, value in backbone.state_dict().items()}
    head_weights = {name: value.clone() for name, value in head.state_dict().items()}
    parameters = {
        **dict(backbone.named_parameters(prefix="b")),
        **dict(head.named_parameters(prefix="h")),
    }
    state = {key: value.clone() for key, value in optimizer_state(optimizer, parameters).items()}
    assert sorted(state) == [f"{name}/{slot}" for name in sorted(parameters) for slot in slots]
    step(backbone, head, optimizer)

    other_backbone, other_head = network()
    other_backbone.load_state_dict(weights)
    other_head.load_state_dict(head_weights)
    other = build_optimizer([*other_backbone.parameters(), *other_head.parameters()], config)
    set_lr(other, 0.05)
    others = {
        **dict(other_backbone.named_parameters(prefix="b")),
        **dict(other_head.named_parameters(prefix="h")),
    }
    restore_optimizer_state(other, others, state)
    step(other_backbone, other_head, other)
    for name, parameter in others.items():
        assert torch.equal(parameter, parameters[name])
