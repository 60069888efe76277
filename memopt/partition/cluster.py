"""What a training cluster can do: devices, their memory and rates, and the links between them.

    cluster = find_cluster("v100-32g", num_devices=256)     # or a file: cluster_file.py
    cluster.inter.bytes_per_s_at(25 * 2**20)

A link's bandwidth depends on the message: W(S) = bytes_per_s S / (S + half_bytes), half of it at
`half_bytes`. Rates are those that are reached, not peaks. Data sheets are NVIDIA's, of the device
named; bus bandwidths are those that nccl-tests reports
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md); latencies of a hop are those
in NCCL's own cost model (https://github.com/NVIDIA/nccl, src/graph/tuning.cc).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from memopt.errors import MemoptError


@dataclass(frozen=True)
class Device:
    """One GPU, or one process on a CPU.

    Attributes:
        name: as in CLUSTERS.
        memory_bytes: usable by tensors.
        half_per_s: operations a second that a large 16-bit product reaches.
        fp32_per_s: the same in fp32 (not TF32, which PyTorch leaves off for products).
        memory_bytes_per_s: bytes read and written a second by a large copy.
        peak_half_per_s: the data sheet's 16-bit rate, dense.
        training_share: share of that peak that training a convolutional network reaches.
        source: where the numbers are from.
    """

    name: str
    memory_bytes: int
    half_per_s: float
    fp32_per_s: float
    memory_bytes_per_s: float
    peak_half_per_s: float
    training_share: float
    source: str

    @property
    def training_per_s(self) -> float:
        """Operations a second of a convolutional network's training."""
        return self.peak_half_per_s * self.training_share


@dataclass(frozen=True)
class Link:
    """One way between two neighbours: from a rank (inside a node), or from a node.

    Attributes:
        latency_us: of one hop.
        bytes_per_s: of a very large message.
        half_bytes: message that gets half of it.
    """

    latency_us: float
    bytes_per_s: float
    half_bytes: float

    def bytes_per_s_at(self, message_bytes: float) -> float:
        """W(S), for a collective of S bytes."""
        return self.bytes_per_s * message_bytes / (message_bytes + self.half_bytes)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices.

    Attributes:
        device: every one of them.
        num_nodes: at least 1.
        devices_per_node: at least 1.
        intra: between two devices of a node, of each of them.
        inter: between two nodes, of each node, shared by its devices; None: there is one node.
        overlap: share of the backward pass's time that gradients can travel behind, 0 to 1.
    """

    device: Device
    num_nodes: int
    devices_per_node: int
    intra: Link
    inter: Link | None
    overlap: float

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    def resized(self, num_devices: int) -> Cluster:
        """The same nodes, as few as hold `num_devices`, evenly used.

        Raises:
            MemoptError: nodes cannot be used evenly, or there is no link between nodes.
        """
        if num_devices < 1:
            raise MemoptError(f"{num_devices} devices: must be at least 1")
        num_nodes = math.ceil(num_devices / self.devices_per_node)
        if num_nodes > 1 and self.inter is None:
            raise MemoptError(
                f"{num_devices} devices of {self.device.name}, {self.devices_per_node} a node: the "
                "cluster has no link between nodes; give its `inter`, or use one node"
            )
        if num_devices % num_nodes:
            raise MemoptError(
                f"{num_devices} devices on {num_nodes} nodes of {self.devices_per_node}: nodes "
                f"must be used evenly; take {num_devices // num_nodes * num_nodes} or "
                f"{(num_devices // num_nodes + 1) * num_nodes} devices"
            )
        return replace(self, num_nodes=num_nodes, devices_per_node=num_devices // num_nodes)


# Large products reach 790 of 989 TF and large copies 4.3 of 4.8 TB/s on an H200 (measured, bf16);
# the other devices are taken to reach the same shares of their data sheets.
_PRODUCT_SHARE = 0.80
_COPY_SHARE = 0.90
_FP32_SHARE = 0.90  # assumed: fp32 units are few enough for memory and power to keep up with
# DDP's buckets start once the first is full and the last one has nothing to hide behind; kernels
# and collectives slow each other down by 1.1 to 1.3 (Galvatron, VLDB 2023, section 3.4). Assumed.
_OVERLAP = 0.7


def _gpu(
    name: str,
    memory_gb: float,
    half_tera: float,
    fp32_tera: float,
    memory_gb_per_s: float,
    training_share: float,
    source: str,
) -> Device:
    """A GPU by its data sheet."""
    return Device(
        name,
        int(memory_gb * 1e9),
        _PRODUCT_SHARE * half_tera * 1e12,
        _FP32_SHARE * fp32_tera * 1e12,
        _COPY_SHARE * memory_gb_per_s * 1e9,
        half_tera * 1e12,
        training_share,
        source,
    )


# training_share: ResNet-50 with automatic mixed precision, images/s times 3 * 2 * 4.09 GMAC.
_V100 = _gpu(
    "v100-32g", 30.5, 125, 15.7, 900, 0.23,
    "V100 SXM2 data sheet; 30.5 GB usable; ResNet-50 at 1156 img/s (NVIDIA DeepLearningExamples)",
)  # fmt: skip
_A100 = _gpu(
    "a100-80g", 77, 312, 19.5, 2039, 0.20,
    "A100 80GB SXM data sheet; usable as on H100; ResNet-50 at 2470 img/s (the same)",
)  # fmt: skip
_H100 = _gpu(
    "h100-80g", 77, 989, 67, 3350, 0.12,
    "H100 SXM5 data sheet; 77 GB usable; share of training assumed, not measured",
)  # fmt: skip
_H200 = replace(
    _gpu(
        "h200", 139 * 1.073741824, 989, 67, 4800, 0.12,
        "790 TF and 4.3 TB/s measured; H200 data sheet; share of training as on H100, assumed",
    ),
    half_per_s=790e12,
    memory_bytes_per_s=4.3e12,
)  # fmt: skip
_RTX2080TI = _gpu(
    "rtx2080ti", 10.5, 53.8, 13.45, 616, 0.23,
    "Turing whitepaper, TU102: 53.8 TF with fp32 sums; 11 GB less context; training as on V100",
)  # fmt: skip

# NVLink: the H200 x 8 all-reduce, 75 / 256 / 415 / 466 GB/s at 1 / 16 / 128 / 1024 MiB, fitted at
# 1.9 us a hop (LL128 over NVLink) within 13 % (tests/memopt/partition/test_collectives.py).
# Others have the same share (0.93) of their line rates: 150 GB/s one way V100, 300 A100.
_NVLINK_HALF_BYTES = 2.25 * 2**20
_NVLINK2 = Link(1.9, 140e9, _NVLINK_HALF_BYTES)
_NVLINK3 = Link(1.9, 280e9, _NVLINK_HALF_BYTES)
_NVLINK4 = Link(1.9, 420e9, _NVLINK_HALF_BYTES)
# PCIe 3.0 x16: 15.75 GB/s one way, of which payloads of 256 bytes leave 0.8; through host memory.
_PCIE3 = Link(3.4, 12.6e9, 2**20)
# Network: 4 us a hop (LL128), and the bandwidth that fits two published all-reduces: 4 x 8 B200
# 12.5 / 72 / 260 / 366 GB/s at 1 / 16 / 128 / 1024 MiB, 2 x 8 H100 22 / 304 / 435 at 1 / 100 /
# 1000 MB. Times are within 17 % from 100 MB on, and within 61 % below, where the two disagree.
# Slower networks have the same half_bytes / bytes_per_s, 86 us, and share (0.97) of line rate.
_IB_100 = Link(4.0, 12.2e9, 2**20)
_IB_8X200 = Link(4.0, 195e9, 16 * 2**20)
_IB_8X400 = Link(4.0, 390e9, 32 * 2**20)

CLUSTERS: dict[str, Cluster] = {
    cluster.device.name: cluster
    for cluster in (
        Cluster(_V100, 1, 8, _NVLINK2, _IB_100, _OVERLAP),
        Cluster(_A100, 1, 8, _NVLINK3, _IB_8X200, _OVERLAP),
        Cluster(_H100, 1, 8, _NVLINK4, _IB_8X400, _OVERLAP),
        Cluster(_H200, 1, 8, _NVLINK4, _IB_8X400, _OVERLAP),
        Cluster(_RTX2080TI, 1, 8, _PCIE3, _IB_100, _OVERLAP),
    )
}
"""One full node of each device, with its link to others; `resized` gives more or fewer."""


def find_cluster(name_or_yaml: str, num_devices: int) -> Cluster:
    """The cluster of that name, or in that file (.yaml, .yml), of `num_devices`.

    Raises:
        MemoptError: no such cluster or file, problems in the file, or nodes used unevenly.
    """
    if name_or_yaml in CLUSTERS:
        return CLUSTERS[name_or_yaml].resized(num_devices)
    if not name_or_yaml.endswith((".yaml", ".yml")):
        raise MemoptError(
            f"cluster {name_or_yaml!r}: must be one of {', '.join(CLUSTERS)}, or a YAML file that "
            "describes one"
        )
    from memopt.partition.cluster_file import read_cluster

    return read_cluster(Path(name_or_yaml)).resized(num_devices)
