"""memopt: the step planned for a budget of bytes, given as a share of the plain peak."""

from __future__ import annotations

from memopt_measure import Forward
from torch import nn

from memopt.budgeted import budget
from memopt_peers.row import Row, RowOptions


def rows(options: RowOptions) -> dict[str, Row]:
    return {
        f"memopt, budget {share:g}": Row(
            lambda model, plain_peak_bytes, share=share: held(model, int(share * plain_peak_bytes))
        )
        for share in options.budgets
    }


def held(model: nn.Module, budget_bytes: int) -> Forward:
    """The model itself, which holds the budget from now on."""
    budget(model, budget_bytes)
    return model
