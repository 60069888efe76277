"""memopt: the step planned for a budget of bytes, given as a share of the plain peak."""

from __future__ import annotations

from functools import partial

from memopt_measure import Forward
from torch import nn

from memopt.budgeted import budget
from memopt_peers.row import Row, RowOptions


def rows(options: RowOptions) -> dict[str, Row]:
    return {
        f"memopt, budget {share:g}": Row(partial(held, share=share)) for share in options.budgets
    }


def held(model: nn.Module, plain_peak_bytes: int, share: float) -> Forward:
    """The model itself, which holds the budget from now on."""
    budget(model, int(share * plain_peak_bytes))
    return model
