"""This machine as a cluster: its rates and links, measured by as many processes as will train.

    cluster = measure_cluster(num_processes=2)        # facetrain bench cluster --num-processes 2

All processes measure at once, so that a core shared by two of them shows as half a core each:

    products   centers [4096, 512] times features [512, 256], as the head does; in 16 bits too
    copies     of 64 MiB
    training   forward and backward of convolutions as in IResNet, in operations (6 a MAC) a second
    links      all-reduce and all-gather of 1 KiB to 16 MiB; a latency and a bandwidth are fitted,
               by the least mean square of the logarithm of predicted over measured

Everything is measured in turns, and the middle of the faster half of the times counts: what other
work on the machine takes comes and goes.

On GPUs (`device="cuda"`, NCCL) the same is measured with larger shapes.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from facetrain.device import device_for, free_memory_bytes
from facetrain.distributed import Communicator, World, connect
from facetrain.distributed.cpus import usable_cpus
from facetrain.distributed.launch import launch, most_processes
from facetrain.errors import FacetrainError
from memopt.partition.cluster import Cluster, Device, Link
from memopt.partition.cluster_file import write_cluster
from memopt.partition.collectives import Collectives, Group

__all__ = ["Cluster", "Measured", "fit_link", "measure_cluster", "write_cluster"]

_TIMEOUT_S = 60.0
_MESSAGE_BYTES = tuple(2**power for power in range(10, 25, 2))
_ROUNDS = 12
_RATES_S = 4.0
# Gradients' sums and the products of the backward pass want the same cores, or copy engines and
# links that are apart from the GPU's; the second is as in memopt/partition/cluster.py.
_OVERLAP = {"cpu": 0.0, "cuda": 0.7}
# Channels and height of IResNet's four stages: a convolution of each takes the same time.
_STAGES = {64: 56, 128: 28, 256: 14, 512: 7}
_FIT_ROUNDS = 4


@dataclass(frozen=True)
class Measured:
    """What one rank measured.

    Attributes:
        memory_bytes: this process's share of what is free.
        fp32_per_s: operations a second of a large fp32 product.
        half_per_s: the same in bfloat16.
        training_per_s: the same of convolutions' forward and backward pass.
        memory_bytes_per_s: read and written by a large copy.
        collectives: (name, bytes of the whole, us) of each.
        device_name: of the machine, for the cluster's source.
    """

    memory_bytes: int
    fp32_per_s: float
    half_per_s: float
    training_per_s: float
    memory_bytes_per_s: float
    collectives: list[tuple[str, int, float]]
    device_name: str


class Job(NamedTuple):
    """Something to be timed.

    Attributes:
        work: operations or bytes of one run.
    """

    work: float
    run: Callable[[], object]


def measure_cluster(num_processes: int, device: str = "cpu") -> Cluster:
    """One node of `num_processes` devices, as fast as they are here and now.

    Takes some 15 s.

    Args:
        device: "cpu" or "cuda": a process on the CPU's cores, or a GPU of its own.

    Raises:
        FacetrainError: processes or GPUs that this machine does not have; or a process failed, as
            its own message on stderr says.
        KeyboardInterrupt: Ctrl-C; no process is left.
    """
    if not 1 <= num_processes <= most_processes():
        raise FacetrainError(
            f"num_processes {num_processes}: this machine can be measured with 1 to "
            f"{most_processes()}; describe a larger cluster by name or in a file"
        )
    if device not in _OVERLAP:
        raise FacetrainError(f"device {device!r}: must be one of {', '.join(_OVERLAP)}")
    with tempfile.TemporaryDirectory(prefix="facetrain-") as folder:
        path = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "facetrain.this_cluster", str(path), device]
        code = launch(command, num_processes)
        if code == 130 or (code == 0 and not path.is_file()):
            raise KeyboardInterrupt
        if code != 0:
            raise FacetrainError("this machine could not be measured: a process failed, see above")
        ranks = [Measured(**values) for values in json.loads(path.read_text(encoding="utf-8"))]
    return cluster_of(ranks, device)


def cluster_of(ranks: Sequence[Measured], device: str) -> Cluster:
    """The cluster whose ranks measured this."""

    def median(field: str) -> float:
        return float(statistics.median(getattr(rank, field) for rank in ranks))

    peak_per_s = max(median("half_per_s"), median("fp32_per_s"))
    training_share = min(1.0, median("training_per_s") / peak_per_s)
    this = Device(
        name="this",
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        half_per_s=median("half_per_s"),
        fp32_per_s=median("fp32_per_s"),
        memory_bytes_per_s=median("memory_bytes_per_s"),
        peak_half_per_s=peak_per_s,
        training_share=training_share,
        source=f"measured by {len(ranks)} processes at once on {ranks[0].device_name}",
    )
    link = fit_link(ranks[0].collectives, len(ranks))
    if link is None:  # alone: nothing is sent
        link = Link(0.0, this.memory_bytes_per_s, 0.0)
    return Cluster(this, 1, len(ranks), link, None, _OVERLAP[device])


def fit_link(measured: Sequence[tuple[str, int, float]], num_ranks: int) -> Link | None:
    """Latency and bandwidth by which `Collectives` comes closest to the measured times.

    Least mean square of log(predicted / measured); a grid around the best, made finer.

    Args:
        measured: (all_reduce or all_gather, bytes of the whole, us).
    """
    if num_ranks == 1 or not measured:
        return None
    # A rank's hop takes less than the fastest call, and about the slowest one's bytes a second.
    latency_us = min(us for _, _, us in measured)
    bytes_per_s = max(1e6 * num_bytes / us for _, num_bytes, us in measured)
    factor = 4.0
    for _ in range(_FIT_ROUNDS):
        steps = [factor ** (step / 6) for step in range(-6, 7)]
        candidates = [Link(latency_us * a, bytes_per_s * b, 0.0) for a in steps for b in steps]
        best = min(candidates, key=functools.partial(_misfit, measured, num_ranks))
        latency_us, bytes_per_s, factor = best.latency_us, best.bytes_per_s, factor**0.5
    return Link(latency_us, bytes_per_s, 0.0)


def predicted_us(link: Link, num_ranks: int, name: str, num_bytes: int) -> float:
    """A collective's time in one node of `num_ranks` with that link."""
    device = Device("", 1, 1.0, 1.0, 1.0, 1.0, 1.0, "")
    collectives = Collectives(Cluster(device, 1, num_ranks, link, None, 0.0))
    us: float = getattr(collectives, name)(num_bytes, Group(num_ranks, num_ranks)).us
    return us


def _misfit(measured: Sequence[tuple[str, int, float]], num_ranks: int, link: Link) -> float:
    return sum(
        math.log(predicted_us(link, num_ranks, name, num_bytes) / us) ** 2
        for name, num_bytes, us in measured
    )


# --- in each rank --------------------------------------------------------------------------------


def measure_rank(communicator: Communicator) -> Measured:
    """Rates and links as this rank sees them, while all others measure the same."""
    device = communicator.device
    on_gpu = device.type == "cuda"
    scale = 8 if on_gpu else 1
    sharing = 1 if on_gpu else communicator.world_size
    memory_bytes = free_memory_bytes(device) // sharing

    jobs: dict[str, Job] = {}
    rows, size = 256 * scale, 512
    # Without 16-bit arithmetic of its own a CPU takes ten times as long.
    for name, dtype, classes in (
        ("fp32", torch.float32, 4096 * scale),
        ("half", torch.bfloat16, 1024 * scale),
    ):
        features = torch.ones(rows, size, device=device, dtype=dtype)
        centers = torch.ones(classes, size, device=device, dtype=dtype)
        out = torch.empty(classes, rows, device=device, dtype=dtype)
        multiply = functools.partial(torch.mm, centers, features.T, out=out)
        jobs[name] = Job(2.0 * rows * size * classes, multiply)

    source = torch.ones(16 * 2**20 * scale, device=device)
    copy = torch.empty_like(source)
    jobs["copy"] = Job(2.0 * source.nbytes, functools.partial(copy.copy_, source))

    batch = 128 if on_gpu else 2
    layers = nn.ModuleList(_layer(channels) for channels in _STAGES)
    layers.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = [
        torch.ones(batch, channels, size, size, device=device).requires_grad_()
        for channels, size in _STAGES.items()
    ]

    def train() -> None:
        for layer, image in zip(layers, images, strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = layer(image).float().sum()
            loss.backward()
        layers.zero_grad()

    num_macs = sum((channels * size * 3) ** 2 for channels, size in _STAGES.items())
    jobs["training"] = Job(6.0 * batch * num_macs, train)
    communicator.barrier()
    rates = _rates(jobs, device)
    return Measured(
        memory_bytes,
        rates["fp32"],
        rates["half"],
        rates["training"],
        rates["copy"],
        _measure_collectives(communicator),
        torch.cuda.get_device_name(device) if on_gpu else f"{usable_cpus()} CPU cores",
    )


def _layer(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.PReLU(channels),
    )


def _rates(jobs: Mapping[str, Job], device: torch.device) -> dict[str, float]:
    """Work a second of each job, all in turns for a while; their first calls are not counted."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    until = time.monotonic() + _RATES_S
    for number in itertools.count():
        for name, job in jobs.items():
            started = time.perf_counter()
            job.run()
            _finish(device)
            if number > 0:
                times[name].append(time.perf_counter() - started)
        if number > 1 and time.monotonic() > until:
            break
    return {name: job.work / _lower_quartile(times[name]) for name, job in jobs.items()}


def _lower_quartile(times: Sequence[float]) -> float:
    """The middle of the faster half: what is reached while other work leaves room."""
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


def _measure_collectives(communicator: Communicator) -> list[tuple[str, int, float]]:
    """Times, sizes interleaved, so that a slow moment of the machine meets all of them."""
    size = communicator.world_size
    if size == 1:
        return []
    times: dict[tuple[str, int], list[float]] = {}
    values = torch.zeros(max(_MESSAGE_BYTES) // 4, device=communicator.device)
    for number in range(_ROUNDS):
        for num_bytes in _MESSAGE_BYTES:
            share = max(1, num_bytes // 4 // size)
            whole, part = values[: num_bytes // 4], values[:share]
            calls: dict[str, tuple[int, Callable[[], object]]] = {
                "all_reduce": (whole.nbytes, functools.partial(communicator.all_reduce, whole)),
                "all_gather": (
                    part.nbytes * size,
                    functools.partial(communicator.all_gather, part, [share] * size),
                ),
            }
            for name, (whole_bytes, call) in calls.items():
                communicator.barrier()
                _finish(communicator.device)
                started = time.perf_counter()
                call()
                _finish(communicator.device)
                if number > 1:
                    elapsed_us = 1e6 * (time.perf_counter() - started)
                    times.setdefault((name, whole_bytes), []).append(elapsed_us)
    return [(name, size, _lower_quartile(found)) for (name, size), found in times.items()]


def _finish(device: torch.device) -> None:
    """Wait for what was started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: Sequence[str]) -> int:
    """One rank: measures, and rank 0 writes what all found into the file named first."""
    from facetrain.command import one_line_errors

    path, wish = arguments

    def run() -> int:
        world = World.from_environment()
        device, _ = device_for(wish, world)
        communicator = connect(world, device, "torch", _TIMEOUT_S)
        ranks = communicator.all_gather_object(asdict(measure_rank(communicator)))
        if communicator.rank == 0:
            Path(path).write_text(json.dumps(ranks), encoding="utf-8")
        communicator.close()
        return 0

    return one_line_errors(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
