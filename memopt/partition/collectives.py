"""What a collective costs: alpha-beta models of rings, trees and hierarchies of both.

S bytes of the whole (gathered or reduced) tensor, P ranks, g of them in each of n nodes; a_i, a_e
latencies of a hop inside a node and between nodes; W bandwidth for a message of S:

    ring           all-gather, reduce-scatter  sum of hops + S (P-1)/P / W        all-reduce: twice
    tree           all-reduce                  2 (a_i log2 g + a_e log2 n) + 2 S / W
    hierarchical   reduce-scatter inside each node, then between nodes (S/g each), or the reverse:
                   (g-1) a_i + (n-1) a_e + S (g-1)/g / W_intra + S (n-1)/n / W_inter
    pairwise       all-to-all                  hops to all others + S (P-1)/P^2 / W

A link's latency is a delay, not an occupation: of a ring's P - 1 hops, n go between nodes (as in
NCCL, src/graph/tuning.cc). A node's link is shared by its devices: other groups of the same kind
are taken to do the same at the same time, so that a group of g ranks a node gets g of
devices_per_node parts of it. Where both kinds of link carry a ring or a tree at once, the slower
one counts; in a hierarchy they take turns.

Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memopt.errors import MemoptError
from memopt.partition.cluster import Cluster, Link


@dataclass(frozen=True)
class Group:
    """Ranks that take part in a collective.

    Attributes:
        num_ranks: P, at least 1.
        ranks_per_node: g, at least 1, at most P.
    """

    num_ranks: int
    ranks_per_node: int

    @classmethod
    def of(cls, cluster: Cluster, num_ranks: int, stride: int = 1) -> Group:
        """`num_ranks` of the cluster: consecutive ones, or every `stride`-th.

        Raises:
            MemoptError: the cluster has not as many.
        """
        if num_ranks < 1 or stride < 1 or (num_ranks - 1) * stride >= cluster.num_devices:
            raise MemoptError(
                f"a group of {num_ranks} ranks, every {stride}th: must be from 1 rank to the "
                f"cluster's {cluster.num_devices}"
            )
        return cls(num_ranks, min(num_ranks, math.ceil(cluster.devices_per_node / stride)))

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_ranks / self.ranks_per_node)


@dataclass(frozen=True)
class Traffic:
    """A collective's cost.

    Attributes:
        us: from the moment the last rank calls it.
        intra_bytes: what a rank sends inside its node.
        inter_bytes: what a node sends to others, all groups together.
        algorithm: the cheapest one, or "none" where nothing is sent.
    """

    us: float
    intra_bytes: float
    inter_bytes: float
    algorithm: str


_NOTHING = Traffic(0.0, 0.0, 0.0, "none")


class Collectives:
    """Costs of collectives on a cluster, each by its cheapest algorithm.

    `num_bytes` is the whole (gathered or reduced) tensor, as in facetrain's communicator.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def all_gather(self, num_bytes: float, group: Group) -> Traffic:
        """Every rank gets the P parts of all."""
        return self._cheapest(self.all_gather_choices(num_bytes, group))

    def reduce_scatter(self, num_bytes: float, group: Group) -> Traffic:
        """Every rank gets its part of the sum: an all-gather run backwards."""
        return self.all_gather(num_bytes, group)

    def all_reduce(self, num_bytes: float, group: Group) -> Traffic:
        """Every rank gets the whole sum."""
        return self._cheapest(self.all_reduce_choices(num_bytes, group))

    def all_to_all(self, num_bytes: float, group: Group) -> Traffic:
        """Every rank sends 1/P of its own S/P bytes to each rank."""
        p, g = group.num_ranks, group.ranks_per_node
        if p == 1 or num_bytes <= 0:
            return _NOTHING
        own_bytes = num_bytes / p
        intra_bytes = own_bytes * (g - 1) / p
        inter_bytes = own_bytes * (p - g) / p * self.cluster.devices_per_node
        delay_us = (g - 1) * self.cluster.intra.latency_us + (p - g) * self._inter_latency_us(group)
        return self._at_once(delay_us, own_bytes, intra_bytes, inter_bytes, "pairwise")

    def broadcast(self, num_bytes: float, group: Group) -> Traffic:
        """Every rank gets one rank's tensor, down a tree, in pieces."""
        g, n = group.ranks_per_node, group.num_nodes
        if group.num_ranks == 1 or num_bytes <= 0:
            return _NOTHING
        delay_us = self._tree_delay_us(group)
        inter_bytes = num_bytes * (n > 1) * self._groups_per_node(group)
        return self._at_once(delay_us, num_bytes, num_bytes * (g > 1), inter_bytes, "tree")

    def all_gather_choices(self, num_bytes: float, group: Group) -> list[Traffic]:
        """An all-gather's or reduce-scatter's cost by each algorithm."""
        if group.num_ranks == 1 or num_bytes <= 0:
            return [_NOTHING]
        choices = [self._ring(num_bytes, group)]
        if group.num_nodes > 1 and group.ranks_per_node > 1:
            choices.append(self._hierarchy(num_bytes, group))
        return choices

    def all_reduce_choices(self, num_bytes: float, group: Group) -> list[Traffic]:
        """An all-reduce's cost by each algorithm."""
        choices = [_twice(choice) for choice in self.all_gather_choices(num_bytes, group)]
        return [*choices, _twice(self.broadcast(num_bytes, group))]

    # --- algorithms ------------------------------------------------------------------------------

    def _ring(self, num_bytes: float, group: Group) -> Traffic:
        p, g, n = group.num_ranks, group.ranks_per_node, group.num_nodes
        # A part makes P - 1 of the ring's P hops, n of which are between nodes.
        far_hops = 0 if n == 1 else min(n, p - 1)
        delay_us = (p - 1 - far_hops) * self.cluster.intra.latency_us
        delay_us += far_hops * self._inter_latency_us(group)
        sent_bytes = num_bytes * (p - 1) / p
        inter_bytes = sent_bytes * (n > 1) * self._groups_per_node(group)
        return self._at_once(delay_us, num_bytes, sent_bytes * (g > 1), inter_bytes, "ring")

    def _hierarchy(self, num_bytes: float, group: Group) -> Traffic:
        g, n = group.ranks_per_node, group.num_nodes
        intra_bytes = num_bytes * (g - 1) / g
        inter_bytes = num_bytes * (n - 1) / n * self._groups_per_node(group)
        delay_us = (g - 1) * self.cluster.intra.latency_us
        delay_us += (n - 1) * self._inter_latency_us(group)
        us = delay_us + _us(self.cluster.intra, intra_bytes, num_bytes)
        us += _us(self._inter, inter_bytes, num_bytes)
        return Traffic(us, intra_bytes, inter_bytes, "hierarchical")

    def _at_once(
        self,
        delay_us: float,
        message_bytes: float,
        intra_bytes: float,
        inter_bytes: float,
        algorithm: str,
    ) -> Traffic:
        us = _us(self.cluster.intra, intra_bytes, message_bytes) if intra_bytes else 0.0
        if inter_bytes:
            us = max(us, _us(self._inter, inter_bytes, message_bytes))
        return Traffic(delay_us + us, intra_bytes, inter_bytes, algorithm)

    # --- parts -----------------------------------------------------------------------------------

    @staticmethod
    def _cheapest(choices: list[Traffic]) -> Traffic:
        return min(choices, key=lambda choice: choice.us)

    @property
    def _inter(self) -> Link:
        if self.cluster.inter is None:
            raise MemoptError(
                f"a group over several nodes of {self.cluster.device.name}: the cluster has no "
                "link between nodes; give its `inter`"
            )
        return self.cluster.inter

    def _inter_latency_us(self, group: Group) -> float:
        return self._inter.latency_us if group.num_nodes > 1 else 0.0

    def _groups_per_node(self, group: Group) -> float:
        """Groups like this one that share a node's link."""
        return self.cluster.devices_per_node / group.ranks_per_node

    def _tree_delay_us(self, group: Group) -> float:
        delay_us = math.ceil(math.log2(group.ranks_per_node)) * self.cluster.intra.latency_us
        return delay_us + math.ceil(math.log2(group.num_nodes)) * self._inter_latency_us(group)


def _us(link: Link, sent_bytes: float, message_bytes: float) -> float:
    return 1e6 * sent_bytes / link.bytes_per_s_at(message_bytes)


def _twice(traffic: Traffic) -> Traffic:
    return Traffic(
        2 * traffic.us, 2 * traffic.intra_bytes, 2 * traffic.inter_bytes, traffic.algorithm
    )
