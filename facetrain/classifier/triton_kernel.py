"""The tile kernel itself, in triton's language; triton_tile.py imports it where it can run.

One program takes BLOCK_N rows and every G-th block of BLOCK_K classes, G being the size of the
grid's second axis: cosines of the block in registers, what the margin does to other classes, the
exponentials, and their sums per row, which stay in registers until the program's last block.
Without `out` nothing but G partial sums a row is written.

Shapes: K classes of the tile, N rows, D embedding.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def tile_kernel(
    centers: tl.tensor,  # [K, D]
    features: tl.tensor,  # [N, D], of the type of the products
    inverse_norms: tl.tensor,  # [K]
    places: tl.tensor,  # [N], of the row's target in the tile, or outside [0, K)
    shifts: tl.tensor,  # [N]
    margin_cosines: tl.tensor,  # [N] or None
    t: tl.tensor,  # [1] or None
    factors: tl.tensor,  # [N] or None: leave `out` as terms
    target_values: tl.tensor,  # [N] or None, with `factors`
    partial_sums: tl.tensor,  # [G, N]
    out: tl.tensor,  # [K, N] or None
    num_classes: tl.tensor,
    num_rows: tl.tensor,
    size: tl.tensor,
    rows_bucket: tl.tensor,  # for the autotuner: how many rows, roughly
    scale: tl.tensor,
    threshold: tl.tensor,
    HAS_THRESHOLD: tl.constexpr,  # noqa: N803 - triton's custom
    TIMES_NORMS: tl.constexpr,  # noqa: N803 - finished terms are multiplied by inverse norms
    INTERPRETED: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
) -> None:
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside = rows < num_rows
    place = tl.load(places + rows, row_inside, other=-1)
    shift = tl.load(shifts + rows, row_inside, other=0.0)
    # 64 bits: K D and K N pass 2**31 at a few million classes.
    row_starts = rows.to(tl.int64) * size
    columns = tl.arange(0, BLOCK_D)
    sums = tl.zeros((BLOCK_N,), tl.float32)
    for block in tl.range(tl.program_id(1), tl.cdiv(num_classes, BLOCK_K), tl.num_programs(1)):
        classes = block * BLOCK_K + tl.arange(0, BLOCK_K)
        class_inside = classes < num_classes
        class_starts = classes.to(tl.int64) * size
        inverse_norm = tl.load(inverse_norms + classes, class_inside, other=0.0)
        cosines = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
        for start in tl.range(0, size, BLOCK_D):
            column = start + columns
            column_inside = column < size
            left = tl.load(
                centers + class_starts[:, None] + column[None, :],
                class_inside[:, None] & column_inside[None, :],
                other=0.0,
            )
            right = tl.load(
                features + row_starts[None, :] + column[:, None],
                row_inside[None, :] & column_inside[:, None],
                other=0.0,
            )
            # Of length 1 before it is rounded: fp16 has no room for short centers.
            left = (left * inverse_norm[:, None]).to(right.dtype)
            if INTERPRETED:
                # Its product takes bf16 for integers; in fp32 the numbers are the same.
                left, right = left.to(tl.float32), right.to(tl.float32)
            # ieee: fp32 operands are not cut to TF32.
            cosines = tl.dot(left, right, cosines, input_precision="ieee")

        is_target = classes[:, None] == place[None, :]
        counted = class_inside[:, None] & ~is_target
        slopes = tl.full((BLOCK_K, BLOCK_N), 1.0, tl.float32)
        above = cosines > threshold
        if HAS_THRESHOLD:
            cosines = tl.where(above, 0.0, cosines)
        if margin_cosines is not None:
            margin_cosine = tl.load(margin_cosines + rows, row_inside, other=0.0)
            hardness = tl.load(t)
            is_hard = cosines > margin_cosine[None, :]
            slopes = tl.where(is_hard, 2.0 * cosines + hardness, 1.0)
            cosines *= tl.where(is_hard, cosines + hardness, 1.0)
        if HAS_THRESHOLD:
            slopes = tl.where(above, 0.0, slopes)
        logits = tl.where(counted, cosines * scale - shift[None, :], -float("inf"))
        terms = tl.exp(logits)
        sums += tl.sum(terms, 0)

        if out is not None:
            terms *= slopes
            if factors is not None:
                target_value = tl.load(target_values + rows, row_inside, other=0.0)
                factor = tl.load(factors + rows, row_inside, other=0.0)
                terms = tl.where(is_target, target_value[None, :], terms)
                terms *= factor[None, :]
                if TIMES_NORMS:
                    terms *= inverse_norm[:, None]
            tl.store(
                out + classes.to(tl.int64)[:, None] * num_rows + rows[None, :],
                terms.to(out.dtype.element_ty),
                class_inside[:, None] & row_inside[None, :],
            )
    tl.store(partial_sums + tl.program_id(1).to(tl.int64) * num_rows + rows, sums, row_inside)


def _config(classes: int, rows: int, columns: int, *, warps: int, stages: int) -> triton.Config:
    blocks = {"BLOCK_K": classes, "BLOCK_N": rows, "BLOCK_D": columns}
    return triton.Config(blocks, num_warps=warps, num_stages=stages)


# Wide ones first: they load an operand less often. A stage takes BLOCK_D (4 BLOCK_K + b BLOCK_N)
# bytes of shared memory, b being those of a feature's element: all fit an A100's 164 KiB. fp32 is
# multiplied without tensor cores, which wants smaller blocks.
CONFIGS = {
    "16-bit": [
        _config(128, 256, 64, warps=8, stages=3),
        _config(128, 128, 64, warps=8, stages=3),
        _config(64, 128, 64, warps=4, stages=3),
        _config(64, 64, 32, warps=4, stages=3),
    ],
    "fp32": [
        _config(128, 128, 32, warps=8, stages=3),
        _config(64, 128, 32, warps=4, stages=3),
        _config(64, 64, 32, warps=4, stages=3),
    ],
}


def tuned_kernel(kind: str) -> Any:
    """The kernel with the fastest of CONFIGS[kind], tried at the first call of each shape."""
    return triton.autotune(CONFIGS[kind], ["size", "rows_bucket"])(tile_kernel)
