"""Gradients of class centers until their step: of all rows, or of the rows in use.

Shapes: R rows of centers on this rank, k of them in a tile, D embedding.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from facetrain.classifier.center_optimizer import CenterOptimizer


class CenterSink(Protocol):
    """Takes the gradient of the centers in use, tile by tile in order."""

    def take(self, start: int, rows: slice | Tensor, used: Tensor, gradient: Tensor) -> None:
        """The gradient [k, D] of center rows `rows`, the `start`-th ones in use.

        Args:
            used: these rows of the centers, [k, D]; may be overwritten, as may the gradient.
        """


class StepAtOnce:
    """Steps each tile as its gradient is made, so that the whole gradient never exists."""

    def __init__(self, centers: Tensor, optimizer: CenterOptimizer) -> None:
        self._centers = centers
        self._optimizer = optimizer

    def take(self, start: int, rows: slice | Tensor, used: Tensor, gradient: Tensor) -> None:
        self._optimizer.step(self._centers, rows, gradient, used)


class GradientOfRows:
    """Adds gradients up, in one tensor of the rows in use.

    Attributes:
        values: [rows in use, D].
    """

    def __init__(self, num_rows: int, centers: Tensor) -> None:
        self.values = torch.zeros((num_rows, centers.shape[1]), device=centers.device)

    def take(self, start: int, rows: slice | Tensor, used: Tensor, gradient: Tensor) -> None:
        self.values[start : start + len(gradient)] += gradient


class PendingGradient:
    """The sum of several micro-batches' gradients, which may use different rows."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor | None, Tensor]] = []

    def add(self, rows: Tensor | None, values: Tensor) -> None:
        """Add the gradient of `rows` (None: all), [rows, D]; `values` may be kept and changed."""
        if rows is None and self._parts:
            self._parts[0][1].add_(values)
        else:
            self._parts.append((rows, values))

    def merge(self) -> tuple[slice | Tensor, Tensor] | None:
        """Rows that have a gradient, each once, and their gradient; None where there is none."""
        if not self._parts:
            return None
        if len(self._parts) > 1:
            numbers = torch.cat([rows for rows, _ in self._parts if rows is not None])
            rows, places = numbers.unique(return_inverse=True)
            total = self._parts[0][1].new_zeros((len(rows), self._parts[0][1].shape[1]))
            for places_of, (_, values) in zip(
                places.split([len(values) for _, values in self._parts]), self._parts, strict=True
            ):
                total.index_add_(0, places_of, values)
            self._parts = [(rows, total)]
        rows_in_use, values = self._parts[0]
        return (slice(0, len(values)) if rows_in_use is None else rows_in_use), values

    def clear(self) -> None:
        self._parts = []
