"""What every strategy reckons with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from memopt.partition.chain import Option
from memopt.partition.cluster import Cluster
from memopt.partition.collectives import Collectives, Group, Traffic
from memopt.partition.layers import Layer, Way


@dataclass(frozen=True, eq=False)
class Setting:
    """The cluster and the optimizer.

    Attributes:
        cluster: all of its devices take part.
        state_ratio: bytes of optimizer state to a byte of weights: 1 for momentum, 2 for Adam.
        bucket_bytes: gradients are summed in messages of that size.
        hidden_share: share of gradients' and weights' traffic that travels behind computation.
    """

    cluster: Cluster
    state_ratio: float = 1.0
    bucket_bytes: int = 25 * 2**20
    hidden_share: float = 0.0

    @cached_property
    def collectives(self) -> Collectives:
        return Collectives(self.cluster)

    @cached_property
    def everyone(self) -> Group:
        return Group.of(self.cluster, self.cluster.num_devices)

    @cached_property
    def node(self) -> Group:
        return Group.of(self.cluster, self.cluster.devices_per_node)

    @cached_property
    def across_nodes(self) -> Group:
        """Devices with the same place in every node."""
        cluster = self.cluster
        return Group.of(cluster, cluster.num_nodes, stride=cluster.devices_per_node)

    def summed(self, weight_bytes: int, group: Group | None = None) -> Traffic:
        """All-reduce of a layer's gradients, as its part of a bucket that others fill with it."""
        bucket_bytes = max(weight_bytes, self.bucket_bytes)
        whole = self.collectives.all_reduce(bucket_bytes, group or self.everyone)
        share = weight_bytes / bucket_bytes
        return Traffic(
            whole.us * share, whole.intra_bytes * share, whole.inter_bytes * share, whole.algorithm
        )

    def exposed_us(self, *traffic: Traffic) -> float:
        """Time that collectives add, where computation may hide some of it."""
        return (1.0 - self.hidden_share) * sum(item.us for item in traffic)

    def optimizer_us(self, weight_bytes: float) -> float:
        """Time of a step: weights and state are read and written, gradients read."""
        moved_bytes = weight_bytes * (3.0 + 2.0 * self.state_ratio)
        return 1e6 * moved_bytes / self.cluster.device.memory_bytes_per_s


class Strategy(Protocol):
    """One way to partition a layer."""

    def __call__(self, layer: Layer, way: Way, setting: Setting) -> Option | None:
        """The layer partitioned so, keeping what `way` keeps; None where it makes no sense."""


def compute_us(layer: Layer, way: Way) -> float:
    """Time of a layer's operators, and of what is run again."""
    return layer.forward_us + layer.backward_us + way.recompute_us
