"""Gradients of class centers until their step: of all rows, or of the rows in use.

Shapes: R rows of centers on this rank, k of them in a tile, D embedding.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from facetrain.classifier.center_optimizer import CenterOptimizer

_ROWS_AT_A_TIME = 256


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


class CenterGradient:
    """Adds gradients up over tiles and, between steps, over passes that use different rows.

    Attributes:
        rows: numbers of the rows that have a gradient, ascending, int64; None = all.
        values: their gradient, [rows, D]; None before the first pass.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.values: Tensor | None = None
        self._places: Tensor | None = None

    def begin(self, rows: Tensor | None, centers: Tensor) -> None:
        """Make room for a pass that uses `rows` (None: all) of the centers, [R, D]."""
        self._places = None
        if self.values is None:
            self.rows = rows
            self.values = centers.new_zeros(
                (len(centers) if rows is None else len(rows), centers.shape[1])
            )
            return
        if self.rows is None:
            self._places = rows
            return
        known = self.rows
        added = torch.arange(len(centers), device=known.device) if rows is None else rows
        self.rows = torch.cat([known, added]).unique()
        values = centers.new_zeros((len(self.rows), centers.shape[1]))
        values.index_copy_(0, torch.searchsorted(self.rows, known), self.values)
        self.values = values
        self._places = torch.searchsorted(self.rows, added)

    def take(self, start: int, rows: slice | Tensor, used: Tensor, gradient: Tensor) -> None:
        assert self.values is not None
        end = start + len(gradient)
        if self._places is None:
            self.values[start:end] += gradient
        else:
            self.values.index_add_(0, self._places[start:end], gradient)

    def norm_square(self) -> float:
        """Sum of squares, added up in fp64."""
        if self.values is None:
            return 0.0
        norms = [
            torch.linalg.vector_norm(part, dtype=torch.float64)
            for part in self.values.split(_ROWS_AT_A_TIME)
        ]
        return float(torch.stack(norms).square().sum())

    def step(self, centers: Tensor, optimizer: CenterOptimizer) -> None:
        """Step the rows that have a gradient, and forget it."""
        if self.values is not None:
            for start in range(0, len(self.values), _ROWS_AT_A_TIME):
                values = self.values[start : start + _ROWS_AT_A_TIME]
                place = slice(start, start + len(values))
                optimizer.step(centers, place if self.rows is None else self.rows[place], values)
        self.clear()

    def clear(self) -> None:
        """Forget the gradient."""
        self.rows = self.values = self._places = None
