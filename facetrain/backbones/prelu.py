"""PReLU whose backward pass takes one tensor of its input's size, not two.

PyTorch's makes the weight's gradient at full size and then sums it. Here both gradients are made
an eighth of the rows at a time and the weight's is summed at once:

    dL/dx = g where x > 0, else w g        dL/dw = sum of x g where x <= 0

Values are those of nn.PReLU; the weight's gradient adds in another order. In evaluation it is
nn.PReLU itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Of a sample; below, PyTorch's way costs little memory and is faster (docs/experiments.md).
_LARGE_ELEMENTS = 2**19
# Always as many, so that a step's memory grows evenly with its batch.
_NUM_PIECES = 8


class PReLU(nn.PReLU):
    """As nn.PReLU, with the same state dict."""

    def forward(self, x: Tensor) -> Tensor:
        """Input [B, C, ...], output of the same shape."""
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):  # as autocast treats nn.PReLU
            x = x.to(torch.get_autocast_dtype(kind))
        weight = self.weight.to(x.dtype).view(1, -1, *[1] * (x.dim() - 2))
        output: Tensor = _PReLU.apply(x, weight)
        return output


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch._prelu_kernel(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        others = [0, *range(2, x.dim())]
        if x.numel() < _LARGE_ELEMENTS * x.shape[0]:
            of_x, full = torch.ops.aten._prelu_kernel_backward(gradient, x, weight)
            return of_x, full.sum(others, keepdim=True)
        of_x = torch.empty_like(x)
        kind = torch.promote_types(x.dtype, torch.float32)
        of_weight = torch.zeros(weight.shape, dtype=kind, device=x.device)
        bounds = [x.shape[0] * piece // _NUM_PIECES for piece in range(_NUM_PIECES + 1)]
        for first, end in pairwise(bounds):
            if first == end:
                continue
            of_x[first:end], full = torch.ops.aten._prelu_kernel_backward(
                gradient[first:end], x[first:end], weight
            )
            of_weight += full.sum(others, keepdim=True, dtype=kind)
        return of_x, of_weight.to(weight.dtype)
