"""Which device and which precision a run uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from facetrain.distributed.world import World
from facetrain.errors import FacetrainError


def device_for(wish: str, world: World) -> tuple[torch.device, str]:
    """The device of this process, and what to tell the user about the choice, or "".

    All ranks of a machine choose alike: "auto" is a GPU each where there are enough, else the CPU.

    Args:
        wish: "auto", "cpu" or "cuda".

    Raises:
        FacetrainError: GPUs are asked for and there are fewer than ranks.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    num_ranks = world.local_world_size
    if wish != "cpu" and num_ranks <= num_gpus:
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        return device, ""
    if wish == "cuda":
        fewer = f", or --num-processes {num_gpus}" if num_gpus else ""
        raise FacetrainError(
            f"--device cuda: each process needs a GPU of its own, and this machine has {num_gpus} "
            f"for {num_ranks}; use --device cpu{fewer}"
        )
    note = ""
    if wish == "auto" and num_gpus:
        gpus = "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
        note = (
            f"{num_ranks} processes and {gpus}: training on the CPU; --num-processes {num_gpus} "
            f"uses the GPU{'s' * (num_gpus > 1)}"
        )
    return torch.device("cpu"), note


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


def free_memory_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Memory that could still be taken, in bytes: of the GPU, or of the machine and the control
    groups (version 2) that this process is in.

    Args:
        root: where proc and sys are.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        free = _numbers(meminfo).get("MemAvailable:", free // 1024) * 1024
    return max(0, min([free, *_free_in_groups(root)]))


def _free_in_groups(root: Path) -> Iterator[int]:
    """Bytes that each limit leaves, of this process's control group and of those around it."""
    mount, own = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    lines = own.read_text().splitlines() if own.is_file() else []
    group = mount / next((line[4:] for line in lines if line.startswith("0::/")), "")
    for folder in (group, *group.parents):
        limit = folder / "memory.max"
        if limit.is_file() and (text := limit.read_text().strip()) != "max":
            # The kernel counts cached files, and drops them when memory is needed.
            stat = _numbers(folder / "memory.stat")
            cached = stat.get("active_file", 0) + stat.get("inactive_file", 0)
            yield int(text) - int((folder / "memory.current").read_text()) + cached
        if folder == mount:
            return


def _numbers(path: Path) -> dict[str, int]:
    """First words of a file's lines, and the numbers that follow them."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
