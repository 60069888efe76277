"""How many CPUs this process may use: the machine's, less what affinity or a container withholds.

https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files (cpu.max: "QUOTA PERIOD" in
microseconds of CPU time per period, or "max PERIOD").
"""

from __future__ import annotations

import os
from pathlib import Path

_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPUs that processes started here can keep busy, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        num_cpus = len(os.sched_getaffinity(0))
    else:
        num_cpus = os.cpu_count() or 1
    quota = cgroup_quota(_OWN_GROUP, _GROUPS)
    return num_cpus if quota is None else max(1, min(num_cpus, int(quota)))


def cgroup_quota(own_group: Path, groups: Path) -> float | None:
    """CPUs' worth of time that cgroup v2 allows: the least of the own group and those above it.

    Args:
        own_group: file whose line "0::/PATH" names the group of this process.
        groups: where the tree of groups is mounted.
    """
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return None
    path = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), None)
    if path is None:
        return None
    quotas = []
    for group in (groups / path, *(groups / path).parents):
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:  # no limit is set here
            continue
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
