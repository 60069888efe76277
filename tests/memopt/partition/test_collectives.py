"""Costs of collectives: by hand, by a ring simulated step by step, and against published ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memopt.errors import MemoptError
from memopt.partition.cluster import CLUSTERS, Cluster, Device, Link
from memopt.partition.collectives import Collectives, Group

MIB = 2**20
DEVICE = Device("toy", 10**9, 1e12, 1e12, 1e11, 2e12, 0.2, "made up")
INTRA, INTER = Link(1.0, 100e6, 0.0), Link(10.0, 50e6, 0.0)  # 100 and 50 bytes a microsecond


def toy(num_nodes: int, devices_per_node: int) -> Cluster:
    return Cluster(DEVICE, num_nodes, devices_per_node, INTRA, INTER, 0.0)


def ring_us(part_bytes: float, links: list[Link]) -> float:
    """All-gather in a ring, slowly: each rank sends on what came, as soon as it is there and its
    link is free; a link is busy while bytes leave, which arrive a latency later.
    """
    p = len(links)
    arrived = {(rank, rank): 0.0 for rank in range(p)}  # (rank, whose part) -> when
    free = [0.0] * p
    for step in range(p - 1):
        for rank, link in enumerate(links):
            part = (rank - step) % p
            start = max(free[rank], arrived[rank, part])
            free[rank] = start + 1e6 * part_bytes / link.bytes_per_s
            arrived[(rank + 1) % p, part] = free[rank] + link.latency_us
    return max(arrived.values())


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_ring_equals_its_simulation_in_one_node(num_ranks: int) -> None:
    cluster = toy(1, num_ranks)
    group = Group.of(cluster, num_ranks)
    whole = 2400.0
    ring = Collectives(cluster).all_gather_choices(whole, group)[0]
    assert ring.us == pytest.approx(ring_us(whole / num_ranks, [INTRA] * num_ranks), abs=1e-9)
    assert ring.intra_bytes == pytest.approx(whole * (num_ranks - 1) / num_ranks)
    assert ring.inter_bytes == 0


@pytest.mark.parametrize(("num_nodes", "per_node"), [(2, 2), (3, 4), (4, 8), (2, 8)])
@pytest.mark.parametrize("whole", [100.0, 10_000.0, 1e6])
def test_ring_is_close_to_its_simulation_over_nodes(
    num_nodes: int, per_node: int, whole: float
) -> None:
    cluster = toy(num_nodes, per_node)
    p = cluster.num_devices
    ring = Collectives(cluster).all_gather_choices(whole, Group.of(cluster, p))[0]
    simulated = ring_us(whole / p, ([INTRA] * (per_node - 1) + [INTER]) * num_nodes)
    # Latencies and the slow link's P - 1 parts overlap in part, while fast links add a little.
    assert 0.75 * ring.us <= simulated <= 1.1 * ring.us


def test_all_reduce_by_hand() -> None:
    cluster = toy(1, 4)
    choices = Collectives(cluster).all_reduce_choices(4000.0, Group.of(cluster, 4))
    assert {choice.algorithm: choice.us for choice in choices} == pytest.approx(
        {"ring": 2 * (3 * 1 + 3000 / 100), "tree": 2 * (2 * 1 + 4000 / 100)}
    )
    ring = choices[0]
    assert ring.intra_bytes == 2 * 4000 * 3 / 4


def test_all_reduce_over_nodes_by_hand() -> None:
    cluster = toy(4, 2)
    choices = Collectives(cluster).all_reduce_choices(8000.0, Group.of(cluster, 8))
    found = {choice.algorithm: choice for choice in choices}
    assert found["ring"].us == pytest.approx(2 * (3 * 1 + 4 * 10 + 7000 / 50))
    assert found["tree"].us == pytest.approx(2 * (1 * 1 + 2 * 10 + 8000 / 50))
    assert found["hierarchical"].us == pytest.approx(
        2 * (1 * 1 + 3 * 10 + 4000 / 100 + 8000 * 3 / 4 / 50)
    )
    assert found["hierarchical"].intra_bytes == 2 * 4000
    assert found["hierarchical"].inter_bytes == 2 * 6000
    assert found["ring"].inter_bytes == 2 * 7000
    best = Collectives(cluster).all_reduce(8000.0, Group.of(cluster, 8))
    assert best == min(choices, key=lambda choice: choice.us)


def test_strided_groups_share_the_nodes_link() -> None:
    cluster = toy(4, 2)
    group = Group.of(cluster, 4, stride=2)  # one rank a node; the other group does the same
    assert group == Group(4, 1)
    ring = Collectives(cluster).all_gather(4000.0, group)
    assert ring.us == pytest.approx(3 * 10 + 2 * 3000 / 50)
    assert (ring.intra_bytes, ring.inter_bytes) == (0, 2 * 3000)


def test_all_to_all_and_broadcast_by_hand() -> None:
    cluster = toy(2, 2)
    group = Group.of(cluster, 4)
    moved = Collectives(cluster).all_to_all(1600.0, group)
    assert moved.intra_bytes == 100  # a quarter of a rank's 400 bytes, to the one beside it
    assert moved.inter_bytes == 2 * 2 * 100  # two ranks, each to both of the other node
    assert moved.us == pytest.approx(1 * 1 + 2 * 10 + 400 / 50)
    sent = Collectives(cluster).broadcast(1600.0, group)
    assert sent.us == pytest.approx(1 + 10 + 1600 / 50)
    assert (sent.intra_bytes, sent.inter_bytes) == (1600, 1600)


def test_one_rank_and_no_bytes_cost_nothing() -> None:
    collectives = Collectives(toy(2, 2))
    for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"):
        for num_bytes, group in ((1e6, Group(1, 1)), (0, Group(4, 2))):
            traffic = getattr(collectives, name)(num_bytes, group)
            assert (traffic.us, traffic.algorithm) == (0, "none")


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]
)
def test_more_bytes_and_more_nodes_never_take_less(name: str, collective: str) -> None:
    before_nodes = [0.0] * 11
    for num_devices in (1, 2, 4, 8, 16, 64, 256, 1024):
        cluster = CLUSTERS[name].resized(num_devices)
        cost = getattr(Collectives(cluster), collective)
        times = [cost(10.0**k, Group.of(cluster, num_devices)).us for k in range(11)]
        assert times == sorted(times)
        if collective != "all_to_all":  # there, a rank's own share shrinks
            assert all(b >= a for a, b in zip(before_nodes, times, strict=True))
        before_nodes = times


@pytest.mark.parametrize(
    ("num_ranks", "stride", "group"),
    [(256, 1, Group(256, 8)), (8, 1, Group(8, 8)), (4, 1, Group(4, 4)), (12, 1, Group(12, 8)),
     (32, 8, Group(32, 1)), (64, 4, Group(64, 2)), (2, 128, Group(2, 1)), (1, 1, Group(1, 1))],
)  # fmt: skip
def test_group_of_a_cluster(num_ranks: int, stride: int, group: Group) -> None:
    assert Group.of(CLUSTERS["h200"].resized(256), num_ranks, stride) == group


@pytest.mark.parametrize(("num_ranks", "stride"), [(0, 1), (9, 1), (5, 2), (2, 0)])
def test_group_beyond_the_cluster(num_ranks: int, stride: int) -> None:
    with pytest.raises(MemoptError, match="to the cluster's 8"):
        Group.of(toy(1, 8), num_ranks, stride)


def test_group_over_nodes_without_a_link() -> None:
    cluster = replace(toy(2, 2), inter=None)
    with pytest.raises(MemoptError, match="no link between nodes"):
        Collectives(cluster).all_reduce(100.0, Group(4, 2))


def predicted_over_published(cluster: Cluster, num_bytes: float, gb_per_s: float) -> float:
    """All-reduce's time over the one in nccl-tests, which says 2 S (P - 1) / P over time."""
    p = cluster.num_devices
    us = Collectives(cluster).all_reduce(num_bytes, Group.of(cluster, p)).us
    return us / (2 * num_bytes * (p - 1) / p / gb_per_s / 1e3)


@pytest.mark.parametrize(
    ("num_mib", "published", "error"),
    [(1, 75, 0.13), (16, 256, -0.11), (128, 415, 0.05), (1024, 466, 0.12)],
)
def test_published_bandwidth_in_a_node(num_mib: int, published: float, error: float) -> None:
    ratio = predicted_over_published(CLUSTERS["h200"], num_mib * MIB, published)
    assert ratio - 1 == pytest.approx(error, abs=0.01)


@pytest.mark.parametrize(
    ("num_nodes", "num_bytes", "published", "error"),
    [
        (2, 1e6, 22, 0.61), (2, 1e8, 304, 0.14), (2, 1e9, 435, 0.17),
        (4, 1 * MIB, 12.5, 0.17), (4, 16 * MIB, 72, -0.37), (4, 128 * MIB, 260, -0.11),
        (4, 1024 * MIB, 366, -0.01),
    ],
)  # fmt: skip
def test_published_bandwidth_between_nodes(
    num_nodes: int, num_bytes: float, published: float, error: float
) -> None:
    """2 x 8 H100, and 4 x 8 B200, whose NVLink is twice as fast."""
    cluster = CLUSTERS["h100-80g"].resized(8 * num_nodes)
    if num_nodes == 4:
        intra = replace(cluster.intra, bytes_per_s=2 * cluster.intra.bytes_per_s)
        cluster = replace(cluster, intra=intra)
    ratio = predicted_over_published(cluster, num_bytes, published)
    assert ratio - 1 == pytest.approx(error, abs=0.015)
