"""Device and precision by name, and what is said where the machine lacks them."""

from __future__ import annotations

import pytest
import torch

from facetrain import device as device_module
from facetrain.device import choose_device, choose_precision
from facetrain.errors import FacetrainError

CPU = torch.device("cpu")


def test_auto_without_a_gpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", 0) == CPU
    with pytest.raises(FacetrainError, match=r"--device cuda: process 0 .* there are 0"):
        choose_device("cuda", 0)


def test_more_processes_than_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(FacetrainError, match="there are 2; use --device cpu, or at most 2"):
        choose_device("auto", 2)
    assert choose_device("cpu", 2) == CPU


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
