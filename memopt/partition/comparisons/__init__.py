"""How other systems would partition the same chain, on the same kernels and constants.

Each is a way to choose among a chain's options, so that a ratio of times is the plan's alone.
Adding one is a file, an entry in `COMPARISONS`, a test and a line in memopt/README.md.
"""

from __future__ import annotations

from memopt.partition.comparisons.fixed import (
    data_parallel,
    empirical_best,
    gshard,
    megatron,
    zero3,
)
from memopt.partition.comparisons.flexflow import flexflow
from memopt.partition.comparisons.rule import Comparison

__all__ = ["COMPARISONS", "Comparison"]

COMPARISONS: dict[str, Comparison] = {
    "data parallel": data_parallel,
    "ZeRO-3": zero3,
    "GShard-like": gshard,
    "Megatron-like": megatron,
    "FlexFlow-like": flexflow,
    "empirical best": empirical_best,
}
