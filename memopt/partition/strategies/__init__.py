"""How a layer's tensors are partitioned over the devices, one file each.

    P1  replicated   batch cut, weights on every device, gradients all-reduced
    P2  zero1..3     batch cut, weights or what belongs to them cut too, gathered before use
    P3  row          weights and input cut by input features; outputs summed
    P4  column       weights and output cut by output features; input gradients summed
        tensor       a layer's first product P4, its last P3: one sum each way (Megatron-LM)

Layouts of activations: "batch" (a device has its own rows), "node" (each device of a node has all
the node's rows), "features" (all the node's rows, a part of the features). Adding a strategy is a
file, an entry in `STRATEGIES`, a test and a line in memopt/README.md.
"""

from __future__ import annotations

from memopt.partition.strategies.replicated import replicated
from memopt.partition.strategies.setting import Setting, Strategy
from memopt.partition.strategies.tensor_parallel import column, convert, row, tensor
from memopt.partition.strategies.zero import zero1, zero2, zero3

__all__ = ["STRATEGIES", "Setting", "Strategy", "convert"]

STRATEGIES: dict[str, Strategy] = {
    "replicated": replicated,
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
    "tensor": tensor,
    "row": row,
    "column": column,
}
