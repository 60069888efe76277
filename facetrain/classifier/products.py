"""Matrix products in a chosen type, summed and returned in fp32.

On a GPU bf16 and fp16 operands are multiplied by its tensor cores. On a CPU the operands are
rounded to the type and multiplied in fp32: the same numbers, since a product of two bf16 (or fp16)
values is exact in fp32, and torch's own bf16 product would round its sums to bf16 and is ten times
slower where the CPU has no such instructions.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Products:
    """Products of fp32 tensors with operands rounded to `dtype`.

    Args:
        dtype: torch.float32, torch.bfloat16 or torch.float16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.rounds = dtype != torch.float32

    def operand(self, values: Tensor) -> Tensor:
        """`values` as a factor of products; may be changed, and be what is returned."""
        if not self.rounds:
            return values
        rounded = values.to(self.dtype)
        return rounded if values.is_cuda else values.copy_(rounded)

    def multiply(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """left @ right in fp32, into `out` if given."""
        if left.dtype == torch.float32:
            return torch.mm(left, right, out=out)
        product = torch.mm(left, right, out_dtype=torch.float32)
        return product if out is None else out.copy_(product)

    def add_product(self, total: Tensor, left: Tensor, right: Tensor, factor: float = 1.0) -> None:
        """total += factor * left @ right, in place."""
        if left.dtype == torch.float32:
            total.addmm_(left, right, alpha=factor)
        else:
            total.add_(torch.mm(left, right, out_dtype=torch.float32), alpha=factor)
