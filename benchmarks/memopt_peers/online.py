"""Online policies in real training, memopt's: DTR, DTE and Coop.

Kirisame et al., ICLR 2021; Hu et al. (MegTaiChi), ICS 2022; Zhang et al., NeurIPS 2023. With no
plan they may go over their budget, so it is their measured peak that they are to be compared at.
"""

from __future__ import annotations

from functools import partial

from memopt_measure import Forward
from torch import nn

from memopt.budgeted import budget
from memopt_peers.row import Row, RowOptions

POLICIES = ("dtr", "dte", "coop")


def rows(options: RowOptions) -> dict[str, Row]:
    """Two first steps: in the first one they learn what the nodes of backward take."""
    return {
        f"{policy}, budget {share:g}": Row(
            partial(held, share=share, policy=policy), num_first_steps=2
        )
        for share in options.budgets
        for policy in POLICIES
    }


def held(model: nn.Module, plain_peak_bytes: int, share: float, policy: str) -> Forward:
    """The model itself, which evicts what does not fit from now on."""
    budget(model, int(share * plain_peak_bytes), policy=policy)
    return model
