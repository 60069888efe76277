"""Selective checkpointing of every block: results of chosen operators are kept, others recomputed.

`torch.utils.checkpoint.create_selective_checkpoint_contexts`. The second row keeps every second
of them, as torchtitan does with products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from memopt_peers.checkpoint import checkpointed, every_link
from memopt_peers.row import Row, RowOptions

aten = torch.ops.aten
SAVED = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]


def rows(options: RowOptions) -> dict[str, Row]:
    contexts: dict[str, Callable[[], Any]] = {
        "selective, convolutions, products, attention": partial(
            create_selective_checkpoint_contexts, SAVED
        ),
        "selective, every second of these": _every_second,
    }
    return {
        label: Row(partial(checkpointed, num_segments=every_link, context_fn=make))
        for label, make in contexts.items()
    }


def _every_second() -> Any:
    """Contexts that count forward and recomputation apart, so that both decide alike."""
    seen: Counter[bool] = Counter()

    def policy(
        context: SelectiveCheckpointContext, operator: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        if operator not in SAVED:
            return CheckpointPolicy.PREFER_RECOMPUTE
        seen[context.is_recompute] += 1
        keep = seen[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
