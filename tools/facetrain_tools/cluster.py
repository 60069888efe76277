"""`facetrain bench cluster`: this machine as a cluster, measured, and its description in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from facetrain.command import parse_flags
from facetrain.report import Facts
from facetrain.this_cluster import measure_cluster, write_cluster

if TYPE_CHECKING:
    from facetrain.this_cluster import Cluster


@dataclass(frozen=True)
class ClusterFlags:
    """Measure rates and links with as many processes as will train; takes some 15 s."""

    num_processes: int = 2
    """Processes, all on this machine."""
    device: str = "cpu"
    """cpu, or cuda: a GPU for each process."""
    out: Path | None = None
    """File to write the description to; `facetrain plan --device FILE` reads it."""


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; the exit code.

    Raises:
        FacetrainError: what cannot be measured here.
        MemoptError: the file cannot be written.
    """
    flags = parse_flags(ClusterFlags, arguments, "facetrain bench cluster")
    cluster = measure_cluster(flags.num_processes, flags.device)
    print(Facts(cluster_facts(cluster)).to_text())
    if flags.out is not None:
        write_cluster(cluster, flags.out)
        print(f"\nwritten: {flags.out}")
    return 0


def cluster_facts(cluster: Cluster) -> dict[str, str]:
    """What a person wants to know of a cluster."""
    device, intra = cluster.device, cluster.intra
    return {
        "measured": device.source,
        "fp32 product": f"{device.fp32_per_s / 1e9:,.1f} Gop/s a process",
        "bf16 product": f"{device.half_per_s / 1e9:,.1f} Gop/s",
        "training": f"{device.training_per_s / 1e9:,.1f} Gop/s in convolutions",
        "copy": f"{device.memory_bytes_per_s / 1e9:,.1f} GB/s read and written",
        "memory": f"{device.memory_bytes / 2**30:,.1f} GiB a process",
        "link": f"{intra.latency_us:,.0f} us a hop, {intra.bytes_per_s / 1e9:,.2f} GB/s"
        if cluster.num_devices > 1
        else "none: one process",
    }
