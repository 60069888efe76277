"""torch.compile with `activation_memory_budget`: a knapsack over the compiled graph.

0 recomputes all that it may, 1 keeps what the default partitioner keeps. It needs a C++ compiler on
a CPU; the first step takes a minute or more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from memopt_measure import Forward
from torch import nn
from torch._functorch import config

from memopt_peers.row import Row, RowOptions


def rows(options: RowOptions) -> dict[str, Row]:
    return {
        f"compile, budget {share:g}": Row(partial(compiled, share=share), countable=False)
        for share in options.compile_budgets
    }


def compiled(model: nn.Module, plain_peak_bytes: int, share: float) -> Forward:
    from torch._inductor.compile_fx import compile_fx

    def inductor(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with config.patch(activation_memory_budget=share):
            return compile_fx(graph, inputs)

    # A backend of its own: rows whose models look alike would share what the first one compiled.
    return torch.compile(model, fullgraph=True, dynamic=False, backend=inductor)
