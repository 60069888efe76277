"""Optimizer steps of class centers, row by row: only rows in use are touched.

A row that is not in use in a step keeps its center, its momentum and its step count: no weight
decay, no decay of the momentum. That is what a sparse update means, and what differs from a dense
optimizer given zero gradients. With every row in use both are the formulas of torch.optim.

    SGD    b <- m b + g + w x;  x <- x - lr b
    AdamW  t <- t + 1;  x <- x (1 - lr w);  u <- b1 u + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
           x <- x - lr / (1 - b1^t) u / (sqrt(v / (1 - b2^t)) + eps)       t of each row its own

Kingma and Ba 2015, Loshchilov and Hutter 2019.

Shapes: R rows of centers on this rank, k of them in one call, D embedding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from facetrain.errors import FacetrainError


class CenterOptimizer(ABC):
    """State and step of one rank's centers.

    Attributes:
        lr: learning rate of the next step.
        state: tensors of the state by name, first dimension R; empty before `attach`.
    """

    def __init__(self, lr: float, weight_decay: float) -> None:
        _check("lr", lr, 0 <= lr < math.inf, "0 or more")
        _check("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "0 or more")
        self.lr = lr
        self.weight_decay = weight_decay
        self.state: dict[str, Tensor] = {}

    @abstractmethod
    def describe(self) -> str:
        """Name and settings, for a log."""

    @abstractmethod
    def attach(self, centers: Tensor) -> None:
        """Make the state for these centers, fp32 [R, D]."""

    @property
    @abstractmethod
    def state_rows(self) -> int:
        """Tensors of the state that are as large as the centers."""

    @abstractmethod
    def state_bytes_per_row(self, size: int) -> int:
        """Bytes of state that a center of `size` dimensions takes."""

    def step(
        self,
        centers: Tensor,
        rows: slice | Tensor,
        gradient: Tensor,
        used: Tensor | None = None,
    ) -> None:
        """One step of `rows` of the centers, in place.

        Args:
            centers: all of this rank's, [R, D].
            rows: a slice, or distinct row numbers, int64 [k].
            gradient: of these rows, [k, D]; may be overwritten.
            used: a copy of these rows where there is one already; may be overwritten.
        """
        if isinstance(rows, slice):
            state = {name: values[rows] for name, values in self.state.items()}
            self._update(centers[rows], gradient, state)
            return
        used = centers.index_select(0, rows) if used is None else used
        state = {name: values.index_select(0, rows) for name, values in self.state.items()}
        self._update(used, gradient, state)
        centers.index_copy_(0, rows, used)
        for name, values in state.items():
            self.state[name].index_copy_(0, rows, values)

    @abstractmethod
    def _update(self, centers: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Step of rows given whole, all in place."""


class CenterSGD(CenterOptimizer):
    """SGD with momentum and L2 penalty.

    Args:
        momentum: m, in [0, 1).
        momentum_dtype: what momentum is stored in, torch.float32 or torch.bfloat16; the step itself
            is made in fp32. bf16 halves the state and rounds each momentum to 8 bits.
    """

    def __init__(
        self,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        momentum_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(lr, weight_decay)
        _check("momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
        types = (torch.float32, torch.bfloat16)
        _check("momentum_dtype", momentum_dtype, momentum_dtype in types, "float32 or bfloat16")
        self.momentum = momentum
        self.momentum_dtype = momentum_dtype

    def describe(self) -> str:
        rounded = " in bf16" if self.momentum_dtype == torch.bfloat16 else ""
        return f"SGD, momentum {self.momentum:g}{rounded}"

    def attach(self, centers: Tensor) -> None:
        self.state = {}
        if self.momentum:
            self.state["momentum"] = torch.zeros_like(centers, dtype=self.momentum_dtype)

    @property
    def state_rows(self) -> int:
        return 1 if self.momentum else 0

    def state_bytes_per_row(self, size: int) -> int:
        return size * self.momentum_dtype.itemsize if self.momentum else 0

    def _update(self, centers: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        if self.weight_decay:
            gradient.add_(centers, alpha=self.weight_decay)
        stored = state.get("momentum")
        if stored is None:
            step = gradient
        elif stored.dtype == gradient.dtype:
            step = stored.mul_(self.momentum).add_(gradient)
        else:
            step = gradient.add_(stored, alpha=self.momentum)
            stored.copy_(step)
        centers.sub_(step, alpha=self.lr)


class CenterAdamW(CenterOptimizer):
    """AdamW; a row's bias correction counts the steps in which the row was in use.

    Args:
        betas: decay of the two moments, each in [0, 1).
        eps: added to the root of the second.
    """

    def __init__(
        self,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.1,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(lr, weight_decay)
        _check("betas", betas, all(0 <= beta < 1 for beta in betas), "in [0, 1)")
        _check("eps", eps, 0 < eps < math.inf, "above 0")
        self.betas = betas
        self.eps = eps

    def describe(self) -> str:
        return "AdamW"

    def attach(self, centers: Tensor) -> None:
        self.state = {
            "first_moment": torch.zeros_like(centers),
            "second_moment": torch.zeros_like(centers),
            "steps": centers.new_zeros((len(centers), 1)),
        }

    @property
    def state_rows(self) -> int:
        return 2

    def state_bytes_per_row(self, size: int) -> int:
        return 2 * 4 * size + 4

    def _update(self, centers: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        first, second, steps = state["first_moment"], state["second_moment"], state["steps"]
        beta1, beta2 = self.betas
        steps += 1
        centers.mul_(1.0 - self.lr * self.weight_decay)
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        # In double: 1 - b2^t has few digits for small t.
        corrections = [(1.0 - beta ** steps.double()) for beta in (beta1, beta2)]
        denominator = torch.div(second, corrections[1].float(), out=gradient).sqrt_().add_(self.eps)
        denominator.mul_(corrections[0].float())
        centers.addcdiv_(first, denominator, value=-self.lr)


def _check(name: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise FacetrainError(f"optimizer of the centers, {name} {value}: must be {allowed}")
