"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memopt_measure import Forward
from torch import nn


@dataclass(frozen=True)
class RowOptions:
    """What the command line asks of the rows.

    Attributes:
        budgets: shares of the plain peak.
        segments: numbers of segments to cut a network into.
        compile_budgets: values of activation_memory_budget.
    """

    budgets: tuple[float, ...]
    segments: tuple[int, ...]
    compile_budgets: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One way to run a model.

    Attributes:
        build: the forward pass, given a model of its own and the counted peak of plain training.
        num_first_steps: steps after which nothing is set up any more, at least 1.
        countable: a dispatch mode sees what it allocates.
    """

    build: Callable[[nn.Module, int], Forward]
    num_first_steps: int = 1
    countable: bool = True


def plain(options: RowOptions) -> dict[str, Row]:
    """Everything is kept."""
    return {"plain": Row(lambda model, plain_peak_bytes: model)}
