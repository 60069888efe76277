"""Device and precision by name, and what is said where the machine lacks them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from facetrain import device as device_module
from facetrain.device import choose_precision, device_for, free_memory_bytes
from facetrain.distributed import World
from facetrain.errors import FacetrainError

CPU = torch.device("cpu")


def _machine(monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def _ranks(num_ranks: int) -> list[World]:
    return [
        World(rank, num_ranks, rank, launched=True, local_world_size=num_ranks)
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize(
    ("num_gpus", "num_ranks", "note"),
    [
        (0, 1, ""),
        (0, 2, ""),
        (1, 2, "2 processes and 1 GPU: training on the CPU; --num-processes 1 uses the GPU"),
        (2, 3, "3 processes and 2 GPUs: training on the CPU; --num-processes 2 uses the GPUs"),
    ],
)
def test_auto_with_too_few_gpus_is_the_cpu_on_all_ranks(
    num_gpus: int, num_ranks: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, num_gpus)
    assert [device_for("auto", world) for world in _ranks(num_ranks)] == [(CPU, note)] * num_ranks


@pytest.mark.parametrize("wish", ["auto", "cuda"])
def test_each_rank_of_a_machine_takes_its_own_gpu(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, 2)
    for world in _ranks(2):
        assert device_for(wish, world) == (torch.device("cuda", world.local_rank), "")
    # The second of two machines with two GPUs each.
    last = World(3, 4, 1, launched=True, local_world_size=2)
    assert device_for(wish, last) == (torch.device("cuda", 1), "")
    assert device_for("cpu", last) == (CPU, "")


def test_cuda_with_too_few_gpus_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for num_gpus, advice in ((0, "use --device cpu"), (1, "or --num-processes 1")):
        _machine(monkeypatch, num_gpus)
        for world in _ranks(2):
            with pytest.raises(FacetrainError, match=f"has {num_gpus} for 2") as raised:
                device_for("cuda", world)
            assert str(raised.value).endswith(advice)


@pytest.mark.parametrize("has_bf16", [False, True])
def test_bf16_only_where_the_device_has_it(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "has_fast_bf16", lambda device: has_bf16)
    assert choose_precision("fp32", CPU) is None
    assert choose_precision("auto", CPU) == (torch.bfloat16 if has_bf16 else None)
    if has_bf16:
        assert choose_precision("bf16", CPU) == torch.bfloat16
    else:
        with pytest.raises(FacetrainError, match="--precision bf16: cpu has no bf16 arithmetic"):
            choose_precision("bf16", CPU)


def _limit(group: Path, limit: str, current: int, cached: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 1\n")


def test_free_memory_is_what_the_machine_and_each_control_group_leave(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 80 kB\nMemAvailable:   50 kB\n")
    assert free_memory_bytes(CPU, tmp_path) == 50 * 1024
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/elsewhere\n0::/job/step\n")
    groups = tmp_path / "sys/fs/cgroup"
    _limit(groups / "job/step", "max", 10, 0)
    assert free_memory_bytes(CPU, tmp_path) == 50 * 1024
    _limit(groups / "job", "40000", 30_000, 7)
    assert free_memory_bytes(CPU, tmp_path) == 10_008
    _limit(groups, "100", 3, 2)  # as in a container, whose own group is the mount
    assert free_memory_bytes(CPU, tmp_path) == 100
    _limit(groups / "job/step", "20", 90, 0)
    assert free_memory_bytes(CPU, tmp_path) == 0
