"""torch.compile with `activation_memory_budget`: a knapsack over the compiled graph.

0 recomputes all that it may, 1 keeps what the default partitioner keeps. It needs a C++ compiler on
a CPU; the first step takes a minute or more.
"""

from __future__ import annotations

import torch
from memopt_measure import Forward
from torch import Tensor, nn
from torch._functorch import config

from memopt_peers.row import Row, RowOptions


def rows(options: RowOptions) -> dict[str, Row]:
    return {
        f"compile, budget {share:g}": Row(
            lambda model, plain_peak_bytes, share=share: compiled(model, share), countable=False
        )
        for share in options.compile_budgets
    }


def compiled(model: nn.Module, share: float) -> Forward:
    run = torch.compile(model, fullgraph=True, dynamic=False)

    def forward(x: Tensor) -> Tensor:
        with config.patch(activation_memory_budget=share):
            return run(x)

    return forward
