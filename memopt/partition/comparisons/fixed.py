"""Systems whose partition is fixed by policy or by the user's annotation."""

from __future__ import annotations

from memopt.partition.chain import Chain
from memopt.partition.comparisons.rule import fastest
from memopt.partition.layers import ALL_KEPT, CHECKPOINT
from memopt.partition.search import Found

_ALL_OR_NOTHING = (ALL_KEPT, CHECKPOINT)


def data_parallel(chain: Chain, budget_bytes: int) -> Found:
    """All weights on every device, class centers too; every layer checkpointed, or none."""
    return fastest(
        chain, budget_bytes, layers="replicated", ways=_ALL_OR_NOTHING, loss=["replicated"]
    )


def zero3(chain: Chain, budget_bytes: int) -> Found:
    """All weights cut and gathered before use, class centers too (Rajbhandari et al., 2020)."""
    return fastest(chain, budget_bytes, layers="zero3", ways=_ALL_OR_NOTHING, loss=["gathered"])


def gshard(chain: Chain, budget_bytes: int) -> Found:
    """Annotated: batch cut in the backbone, classes cut in the loss; nothing is remade.

    Lepikhin et al., "GShard", 2020; Xu et al., "GSPMD", 2021.
    """
    return fastest(chain, budget_bytes, layers="replicated", ways=[ALL_KEPT], loss=["sharded"])


def megatron(chain: Chain, budget_bytes: int) -> Found:
    """Layers and classes cut inside a node, nodes data parallel (Shoeybi et al., 2019)."""
    return fastest(chain, budget_bytes, layers="tensor", ways=_ALL_OR_NOTHING, loss=["node"])


def empirical_best(chain: Chain, budget_bytes: int) -> Found:
    """What practice has arrived at: data-parallel backbone, classes cut over all devices."""
    return fastest(chain, budget_bytes, layers="replicated", ways=_ALL_OR_NOTHING, loss=["sharded"])
