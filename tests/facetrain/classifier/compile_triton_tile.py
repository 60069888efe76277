"""Compiles the tile kernel as far as machine code, which needs no GPU. The interpreter takes much
that the compiler does not.
"""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from facetrain.classifier.triton_kernel import CONFIGS, tile_kernel

FP32 = ("centers", "inverse_norms", "shifts", "partial_sums")
OPTIONAL = ("margin_cosines", "t", "factors", "target_values")
AN_A100S_SHARED_BYTES = 163 * 1024


def compile_kernel(capability: int, features: str, out: str | None, *, everything: bool) -> None:
    """Compile for one kind of call; `everything` but the sums, or nothing."""
    config = CONFIGS["fp32" if features == "fp32" else "16-bit"][-1]
    signature = dict.fromkeys(tile_kernel.arg_names, "i32")
    signature |= dict.fromkeys(FP32, "*fp32") | {"features": f"*{features}", "places": "*i64"}
    signature |= dict.fromkeys(("scale", "threshold"), "fp32")
    constants = {
        "HAS_THRESHOLD": everything,
        "TIMES_NORMS": features == "fp32",
        "INTERPRETED": False,
        **config.kwargs,
    }
    if everything:
        signature |= dict.fromkeys(OPTIONAL, "*fp32") | {"out": f"*{out}"}
    else:
        constants |= dict.fromkeys((*OPTIONAL, "out"))
    signature |= dict.fromkeys(constants, "constexpr")
    made = triton.compile(
        ASTSource(tile_kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "enable_fp_fusion": True,
        },
    )
    assert made.asm["cubin"]
    assert made.metadata.shared <= AN_A100S_SHARED_BYTES


if __name__ == "__main__":
    compile_kernel(80, "fp32", None, everything=False)
    compile_kernel(90, "bf16", "bf16", everything=True)
