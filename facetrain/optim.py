"""The backbone's optimizer, and a learning rate that follows from the batch and the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from facetrain.config import OptimConfig

LR_REFERENCE_BATCH = 1024
"""Global batch that `OptimConfig.lr` is meant for; Goyal et al. 2017: scale it linearly."""


@dataclass(frozen=True)
class LrSchedule:
    """Learning rate of every step: linear warm-up to `peak_lr`, then decay to 0 or none.

    Attributes:
        kind: linear, cosine or constant.
        peak_lr: after warm-up.
        warmup_steps: W; step s < W has peak_lr (s + 1) / W.
        num_steps: of the whole run.
    """

    kind: str
    peak_lr: float
    warmup_steps: int
    num_steps: int

    @classmethod
    def from_config(cls, config: OptimConfig, num_images: int) -> LrSchedule:
        """The schedule for a data set of `num_images` images."""
        return cls(
            kind=config.schedule,
            peak_lr=config.lr * config.global_batch_size / LR_REFERENCE_BATCH,
            warmup_steps=round(config.warmup_epochs * num_images / config.global_batch_size),
            num_steps=max(1, math.ceil(config.epochs * num_images / config.global_batch_size)),
        )

    def lr(self, step: int) -> float:
        """Learning rate of step 0 <= step < num_steps."""
        if step < self.warmup_steps:
            return self.peak_lr * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        if self.kind == "linear":
            return self.peak_lr * (1.0 - progress)
        if self.kind == "cosine":
            return self.peak_lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak_lr

    def describe(self, config: OptimConfig, num_images: int, world_size: int) -> str:
        """One line: what follows from the data, the batch and the world size."""
        batch = config.global_batch_size
        parts = f"{world_size} process{'es' * (world_size > 1)}"
        if config.micro_batches > 1:
            parts += f" x {config.micro_batches} micro-batches"
        steps, warmup = (
            _counted(self.num_steps, "step"),
            _counted(self.warmup_steps, "warm-up step"),
        )
        return (
            f"{num_images:,} images x {config.epochs:g} epochs / {batch} a step ({parts}) = "
            f"{steps}; lr {config.lr:g} x {batch}/{LR_REFERENCE_BATCH} = "
            f"{self.peak_lr:.4g}, {warmup}, {self.kind}"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def build_optimizer(
    parameters: Sequence[nn.Parameter], config: OptimConfig
) -> torch.optim.Optimizer:
    """The optimizer of everything but the class centers, which the head steps itself."""
    kind, settings = optimizer_kind(config)
    return kind(parameters, **settings)


def optimizer_kind(config: OptimConfig) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Class of that optimizer, and its arguments but the parameters."""
    settings = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW, settings
    return torch.optim.SGD, {**settings, "momentum": config.momentum}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """State tensors of the named parameters, keyed "name/slot"."""
    return {
        f"{name}/{slot}": value
        for name, parameter in parameters.items()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, Tensor],
) -> None:
    """Inverse of `optimizer_state`."""
    for key, value in state.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters[name]
        # A copy laid out as the parameter: fused steps want one memory format. Counts are scalars.
        like = parameter if value.shape == parameter.shape else value
        optimizer.state[parameter][slot] = torch.empty_like(
            like, dtype=value.dtype, device=parameter.device
        ).copy_(value)
