"""Which device and which precision a run uses."""

from __future__ import annotations

import torch

from facetrain.errors import FacetrainError


def choose_device(wish: str, local_rank: int) -> torch.device:
    """The device of this process: "auto" is the local rank's GPU where there is one.

    Raises:
        FacetrainError: a GPU is asked for and there is none for this rank.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wish == "cpu" or (wish == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if local_rank >= num_gpus:
        raise FacetrainError(
            f"--device {wish}: process {local_rank} of this machine needs a GPU of its own and "
            f"there are {num_gpus}; use --device cpu, or at most {num_gpus} processes"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_precision(wish: str, device: torch.device) -> torch.dtype | None:
    """bfloat16 for autocast, or None for plain fp32; "auto" is bf16 where the device has it.

    Raises:
        FacetrainError: bf16 is asked for and the device only emulates it.
    """
    if wish == "fp32":
        return None
    if has_fast_bf16(device):
        return torch.bfloat16
    if wish == "bf16":
        raise FacetrainError(
            f"--precision bf16: {device} has no bf16 arithmetic of its own, it would run many "
            "times slower; use --precision fp32"
        )
    return None


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products run in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "sve_bf16"))
