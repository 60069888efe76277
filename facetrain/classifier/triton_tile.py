"""A tile of the margin softmax in one kernel: cosines, margin, exponentials, sums.

    sums[n] = sum_{k != y_n} exp(s c'_kn - shift_n)        c'_kn = shaped(centers_k . features_n)

for softmax losses with one center a class. Other classes' cosines may be shaped by CurricularFace's
rule, c -> c (t + c) above the row's margin cosine, and count as 0 above a threshold. Asked for the
sums only, the kernel writes nothing of the tile to memory, so a tile may be all classes; asked for
more, it writes each class's term once, with its slope, or finished:

    (target's value, or term times slope) * factor_n        (* inverse norm_k with fp32 features)

Products are added up in fp32. fp32 operands are multiplied in full ("ieee", no TF32), so that the
head's 1e-5 holds; 16-bit operands by tensor cores, unit centers being rounded on the way. Sums are
added in a fixed order, without atomics: the same bits each time for the same block sizes. These are
chosen by measurement once per process, by shape (TRITON_CACHE_AUTOTUNING=1 keeps the choice).

The torch version, tiles.py, is the reference. With TRITON_INTERPRET=1 set before the first import
of triton the kernel runs anywhere, slowly, by triton's interpreter.

Shapes: k classes of the tile, n rows of the chunk, D embedding.
"""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOST_GROUPS = 512
_CLASSES_OF_A_GROUP = 64
_INTERPRETED_BLOCKS = {"BLOCK_K": 32, "BLOCK_N": 32, "BLOCK_D": 32}
_OLDEST_CAPABILITY = (8, 0)


@functools.cache
def unavailable(device: torch.device) -> str | None:
    """Why the kernel cannot run on `device`; None where it can."""
    if device.type != "cuda" and not _interpreted():
        return f"triton kernels run on CUDA devices, not on {device.type}"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    if _interpreted():
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} of {device} is below 8.0"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "triton needs a C compiler, and there is neither gcc nor clang; install one"
    return None


@dataclass(frozen=True)
class Finish:
    """What turns terms into the centers' side of the gradient's products.

    Attributes:
        factors_n: of each row, fp32 [n].
        target_values_n: in place of the target's term and slope, fp32 [n].
    """

    factors_n: Tensor
    target_values_n: Tensor


def tile_sums(
    centers_kd: Tensor,
    features_nd: Tensor,
    inverse_norms_k: Tensor,
    places_n: Tensor,
    scale: float,
    shift: float | Tensor,
    *,
    threshold: float | None = None,
    curriculum: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    finish: Finish | None = None,
) -> Tensor:
    """Row sums of the exponentials of all classes but the targets, fp32 [n].

    Args:
        centers_kd: of any length, fp32; made unit, then rounded to the features' type.
        features_nd: of length 1, fp32, bf16 or fp16.
        inverse_norms_k: of the centers, fp32.
        places_n: of each row's target in the tile; outside [0, k) where it is elsewhere, int64.
        shift: subtracted from logits, one for all rows or [n].
        threshold: cosines above it count as 0, without a slope.
        curriculum: t, of one element, and the rows' margin cosines [n].
        out: gets the terms times their slopes, 0 at the targets; contiguous [k, n].
        finish: what `out` gets instead, see `Finish`.
    """
    num_classes, size = centers_kd.shape
    num_rows = len(features_nd)
    if not num_classes or not num_rows:
        return features_nd.new_zeros(num_rows, dtype=torch.float32)
    assert out is None or (out.is_contiguous() and out.shape == (num_classes, num_rows))
    assert finish is None or out is not None
    t, margin_cosines = (None, None) if curriculum is None else curriculum
    factors, target_values = None, None
    if finish is not None:
        factors, target_values = finish.factors_n.contiguous(), finish.target_values_n.contiguous()
    groups = min(_MOST_GROUPS, -(-num_classes // _CLASSES_OF_A_GROUP))
    partial_sums = features_nd.new_empty((groups, num_rows), dtype=torch.float32)
    if not isinstance(shift, Tensor):
        shift = partial_sums.new_full((num_rows,), shift)
    kernel, launch_options = _kernel("fp32" if features_nd.dtype == torch.float32 else "16-bit")

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return -(-num_rows // int(chosen["BLOCK_N"])), groups

    with torch.cuda.device_of(centers_kd):
        kernel[grid](
            centers_kd.contiguous(),
            features_nd.contiguous(),
            inverse_norms_k.contiguous(),
            places_n.contiguous(),
            shift.contiguous(),
            None if margin_cosines is None else margin_cosines.contiguous(),
            t,
            factors,
            target_values,
            partial_sums,
            out,
            num_classes,
            num_rows,
            size,
            1 << (num_rows - 1).bit_length(),
            scale,
            0.0 if threshold is None else threshold,
            HAS_THRESHOLD=threshold is not None,
            TIMES_NORMS=features_nd.dtype == torch.float32,
            INTERPRETED=_interpreted(),
            **launch_options,
        )
    return partial_sums.sum(0)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.cache
def _kernel(kind: str) -> tuple[Any, dict[str, Any]]:
    """The kernel for "fp32" or "16-bit" features, and options of its launch."""
    from facetrain.classifier import triton_kernel

    if _interpreted():
        return triton_kernel.tile_kernel, _INTERPRETED_BLOCKS
    # Named, since triton's default is to change: a product and its sum are rounded once.
    return triton_kernel.tuned_kernel(kind), {"enable_fp_fusion": True}
