"""CPUs as affinity and cgroups leave them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from facetrain.distributed import cpus
from facetrain.distributed.cpus import cgroup_quota, usable_cpus


def _groups(tmp_path: Path, limits: dict[str, str]) -> Path:
    root = tmp_path / "groups"
    for group, text in limits.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cpu.max").write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"a/b": "max 100000"}, None),
        ({"a/b": "250000 100000"}, 2.5),
        ({"a/b": "400000 100000", "a": "150000 100000"}, 1.5),
        ({"a/b": "max 100000", ".": "50000 100000"}, 0.5),
        ({"a/other": "100000 100000"}, None),
    ],
)
def test_quota_is_the_least_of_the_own_group_and_those_above(
    limits: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text("1:cpu:/elsewhere\n0::/a/b\n")
    assert cgroup_quota(own, _groups(tmp_path, limits)) == expected


def test_without_cgroup_v2_there_is_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "absent", tmp_path) is None
    (tmp_path / "own").write_text("1:cpu:/\n")
    assert cgroup_quota(tmp_path / "own", tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 6), (2.5, 2), (0.5, 1), (64.0, 6)])
def test_usable_cpus_are_those_of_affinity_within_the_quota(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(cpus, "cgroup_quota", lambda own_group, groups: quota)
    assert usable_cpus() == expected
