"""This machine measured: the fit against times made from a known link, and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from facetrain import this_cluster
from facetrain.distributed import SingleCommunicator
from facetrain.errors import FacetrainError
from facetrain.this_cluster import (
    Measured,
    cluster_of,
    fit_link,
    measure_cluster,
    measure_rank,
    predicted_us,
)
from memopt.partition.cluster import Link

SIZES = [2**power for power in range(10, 25, 2)]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("link", [Link(150.0, 1e9, 0.0), Link(5.0, 100e9, 0.0)])
def test_fit_finds_the_link_that_made_the_times(num_ranks: int, link: Link) -> None:
    times = [
        (name, size, predicted_us(link, num_ranks, name, size))
        for name in ("all_reduce", "all_gather")
        for size in SIZES
    ]
    found = fit_link(times, num_ranks)
    assert found is not None
    # The last grid's steps are 2.9 % apart.
    assert found.latency_us == pytest.approx(link.latency_us, rel=0.03)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=0.03)


def _rank(**values: float) -> Measured:
    usual = {
        "memory_bytes": 8 * 2**30,
        "fp32_per_s": 40e9,
        "half_per_s": 20e9,
        "training_per_s": 10e9,
        "memory_bytes_per_s": 9e9,
    }
    times = [("all_reduce", size, 100 + size / 1e3) for size in SIZES]
    return Measured(**{**usual, **values}, collectives=times, device_name="2 CPU cores")  # type: ignore[arg-type]


def test_cluster_of_ranks_is_that_of_the_middle_one_and_the_least_memory() -> None:
    ranks = [_rank(), _rank(fp32_per_s=30e9, memory_bytes=2**30), _rank(fp32_per_s=20e9)]
    cluster = cluster_of(ranks, "cpu")
    assert cluster.num_devices == cluster.devices_per_node == 3
    assert cluster.device.fp32_per_s == cluster.device.peak_half_per_s == 30e9
    assert cluster.device.training_per_s == pytest.approx(10e9)
    assert cluster.device.memory_bytes == 2**30
    assert (cluster.inter, cluster.overlap) == (None, 0.0)
    assert 0 < cluster.intra.latency_us < 100


def test_one_rank_measures_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_cluster, "_RATES_S", 0.0)
    monkeypatch.setattr(this_cluster, "_STAGES", {16: 14})
    measured = measure_rank(SingleCommunicator())
    rates = (measured.fp32_per_s, measured.half_per_s, measured.training_per_s)
    assert all(1e6 < rate < 1e13 for rate in rates)
    assert 1e7 < measured.memory_bytes_per_s < 1e12
    assert measured.collectives == []
    assert cluster_of([measured], "cpu").intra.latency_us == 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("num_processes", "device", "message"),
    [(0, "cpu", "num_processes 0"), (10**6, "cpu", "measured with 1 to"), (1, "tpu", "cpu, cuda")],
)
def test_what_cannot_be_measured(num_processes: int, device: str, message: str) -> None:
    with pytest.raises(FacetrainError, match=message):
        measure_cluster(num_processes, device)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_real_processes(num_processes: int) -> None:
    cluster = measure_cluster(num_processes)
    assert cluster.num_devices == num_processes
    assert 1e8 < cluster.device.fp32_per_s < 1e13
    assert 1e6 < cluster.intra.bytes_per_s < 1e12
    assert str(num_processes) in cluster.device.source


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process(number: int, tmp_path: Path) -> None:
    script = "from facetrain.this_cluster import measure_cluster\nmeasure_cluster(2)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (ranks := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error
    assert len(ranks) >= 1
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert list(tmp_path.iterdir()) == []


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []
