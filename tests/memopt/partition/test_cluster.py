"""Clusters: by name, resized, and their files, good and bad."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memopt.errors import MemoptError
from memopt.partition.cluster import CLUSTERS, Link, find_cluster
from memopt.partition.cluster_file import read_cluster, write_cluster

GOOD = """
device:
  name: my-gpu
  memory_bytes: 30.5GB
  half_per_s: 100e12
  fp32_per_s: 1.4e+13
  memory_bytes_per_s: 800e9
  peak_half_per_s: 125e12
  training_share: 0.23
devices_per_node: 8
intra: {latency_us: 2, bytes_per_s: 130e9, half_bytes: 2MiB}
inter: {latency_us: 4, bytes_per_s: 12e9, half_bytes: 0}
overlap: 0.7
"""


def test_bandwidth_is_half_at_half_bytes() -> None:
    link = Link(1.0, 100e9, 2**20)
    assert link.bytes_per_s_at(2**20) == 50e9
    assert link.bytes_per_s_at(2**40) == pytest.approx(100e9, rel=1e-5)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize(
    ("num_devices", "nodes", "per_node"),
    [(1, 1, 1), (3, 1, 3), (8, 1, 8), (12, 2, 6), (16, 2, 8), (256, 32, 8)],
)
def test_named_cluster_has_as_many_devices_as_asked(
    name: str, num_devices: int, nodes: int, per_node: int
) -> None:
    cluster = find_cluster(name, num_devices)
    assert (cluster.num_nodes, cluster.devices_per_node) == (nodes, per_node)
    assert cluster.num_devices == num_devices
    assert cluster.device.name == name
    assert cluster.device.source


@pytest.mark.parametrize("name", CLUSTERS)
def test_constants_are_plausible(name: str) -> None:
    cluster = CLUSTERS[name]
    device = cluster.device
    assert device.training_per_s < device.half_per_s < device.peak_half_per_s
    assert device.fp32_per_s < device.half_per_s
    assert cluster.inter is not None
    assert 8e9 < device.memory_bytes < 160e9


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(MemoptError, match=r"'v100'.*v100-32g, a100-80g, h100-80g, h200, rtx2080ti"):
        find_cluster("v100", 8)


@pytest.mark.parametrize(
    ("num_devices", "message"), [(0, "at least 1"), (-3, "at least 1"), (17, "take 15 or 18")]
)
def test_number_of_devices_that_cannot_be(num_devices: int, message: str) -> None:
    with pytest.raises(MemoptError, match=message):
        find_cluster("h200", num_devices)


def test_several_nodes_need_a_link() -> None:
    with pytest.raises(MemoptError, match="no link between nodes"):
        replace(CLUSTERS["h200"], inter=None).resized(16)


@pytest.mark.parametrize("name", CLUSTERS)
def test_file_gives_back_what_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    for cluster in (CLUSTERS[name].resized(24), replace(CLUSTERS[name], inter=None)):
        write_cluster(cluster, path)
        assert read_cluster(path) == cluster


def test_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(GOOD)
    cluster = find_cluster(str(path), 32)
    assert (cluster.num_nodes, cluster.devices_per_node) == (4, 8)
    assert cluster.device.memory_bytes == 30_500_000_000
    assert cluster.device.half_per_s == 100e12
    assert cluster.intra == Link(2.0, 130e9, 2 * 2**20)
    assert cluster.inter == Link(4.0, 12e9, 0.0)


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    text = GOOD.replace("100e12", "fast").replace("0.23", "23").replace("overlap: 0.7", "speed: 1")
    path.write_text(text.replace("30.5GB", "30.5G").replace("node: 8", "node: 0"))
    with pytest.raises(MemoptError) as caught:
        read_cluster(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        f"{path}: ",
        "device.half_per_s 'fast': must be a number from 1 to 1e30",
        "device.training_share 23: must be above 0 and at most 1",
        "device.memory_bytes '30.5G': must be bytes",
        "devices_per_node 0: must be a whole number from 1",
        "overlap is missing",
        "speed is unknown: fields are device, num_nodes,",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the empty file None: must be fields device"),
        ("[1, 2]", "must be fields"),
        ("a: [", "is no YAML"),
        ("device: 3\ndevices_per_node: 1\nintra: x\noverlap: .nan", "device 3: must be fields"),
        ("? [1]\n: 2", "is no YAML"),
        ("\x00", "is no YAML"),
        ("a: 2001-99-99", "is no YAML"),
        (GOOD.replace("0.7", ".nan"), "overlap nan: must be from 0 to 1"),
        (GOOD.replace("0.7", "yes"), "overlap True: must be from 0 to 1"),
        (GOOD.replace("latency_us: 2", "latency_us: -1"), "intra.latency_us -1"),
        (GOOD + "num_nodes: 2.5", "num_nodes 2.5: must be a whole number"),
        (GOOD.replace("inter:", "#") + "num_nodes: 2", "inter None: must be a link"),
        (GOOD.replace("130e9", "1e999"), "intra.bytes_per_s '1e999'"),
        (GOOD.replace("my-gpu", "7"), "device.name 7: must be text"),
    ],
)
def test_bad_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(MemoptError) as caught:
        read_cluster(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MemoptError, match="cannot be read"):
        find_cluster(str(tmp_path / "none.yaml"), 8)
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    with pytest.raises(MemoptError, match="cannot be read"):
        find_cluster(str(folder), 8)
    with pytest.raises(MemoptError, match="cannot be written"):
        write_cluster(CLUSTERS["h200"], folder)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(MemoptError, match="is no YAML"):
        read_cluster(tmp_path / "latin.yaml")


def test_the_readmes_file_is_one(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "memopt/partition/README.md"
    path = tmp_path / "cluster.yaml"
    path.write_text(readme.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
    cluster = find_cluster(str(path), 256)
    assert cluster.num_nodes == 32
    assert cluster.device.memory_bytes == 30_500_000_000


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    make(path)
    with pytest.raises(MemoptError, match=r"c\.yaml: no regular file"):
        read_cluster(path)


def test_aliases_of_aliases_are_told_in_few_words(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    levels = ["device: &l0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30)]
    path.write_text("\n".join([*levels, "overlap: *l29"]), encoding="utf-8")
    with pytest.raises(MemoptError, match=r"and 13 more") as error:
        read_cluster(path)
    assert len(str(error.value)) < 4000
