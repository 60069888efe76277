"""What is in a trace: operators, storages, plain peak, placement, largest values.

python -m memopt show TRACE --png memory.png
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import defaultdict
from pathlib import Path

import numpy as np

from memopt.arena import CachingArena
from memopt.errors import MemoptError
from memopt.graph import OpGraph, Role
from memopt.placement import graph_lifetimes, place
from memopt.policies import POLICIES
from memopt.replay import replay
from memopt.tables import table
from memopt.traces import read_trace
from memopt.units import format_bytes

_NUM_LISTED = 8


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, help="file of a trace (memopt's format or DTR's)")
    parser.add_argument("--png", type=Path, help="draw memory over the iteration into this file")


def run(options: Namespace) -> None:
    graph = read_trace(options.trace)
    print(f"{options.trace.name}\n{_counts(graph)}\n")
    print(f"{_storages(graph)}\n\n{_largest(graph)}\n\n{_slowest(graph)}")
    if options.png is not None:
        draw_memory(graph, options.trace.name, options.png)
        print(f"\nmemory over the iteration: {options.png}")


def _counts(graph: OpGraph) -> str:
    live = graph.live_bytes()
    peak_bytes = graph.plain_peak_bytes()
    num_backward = sum(operator.backward for operator in graph.operators)
    num_in_place = sum(value.version > 0 for value in graph.values)
    placement = place(list(graph_lifetimes(graph).values()))
    # Memory without end: the policy is never asked.
    caching = replay(graph, POLICIES["dtr_eq"], CachingArena(2**62))
    lines = [
        f"operators         {len(graph.operators)}, {num_backward} of them backward, "
        f"{graph.total_cost_us() / 1e3:.1f} ms",
        f"values            {len(graph.values)}, {num_in_place} of them written in place, "
        f"{len(graph.saved)} marked as saved for backward",
        f"plain peak        {format_bytes(peak_bytes)}",
    ]
    if peak_bytes:
        at = live.index(peak_bytes)
        lines[-1] += f", at operator {at} ({graph.operators[at].name})"
        lines.append(
            f"with addresses    {format_bytes(placement.height_bytes)} planned "
            f"({placement.over_bound:.3f} of what is alive), "
            f"{format_bytes(caching.high_water_bytes)} in PyTorch's CUDA allocator"
        )
    return "\n".join(lines)


def _storages(graph: OpGraph) -> str:
    rows = []
    for role in Role:
        sizes = [storage.size_bytes for storage in graph.storages if storage.role is role]
        rows.append([role.value, str(len(sizes)), format_bytes(sum(sizes))])
    return table(["storages", "number", "bytes"], rows)


def _largest(graph: OpGraph) -> str:
    lifetimes = graph_lifetimes(graph)
    largest = sorted(lifetimes, key=lambda number: (-lifetimes[number].size_bytes, number))
    rows = []
    for number in largest[:_NUM_LISTED]:
        life = lifetimes[number]
        rows.append(
            [
                graph.operators[life.first].name,
                format_bytes(life.size_bytes),
                f"{life.first} to {min(life.last, len(graph.operators) - 1)}",
                graph.storages[number].role.value,
            ]
        )
    return table(["largest, made by", "bytes", "alive at operators", "role"], rows)


def _slowest(graph: OpGraph) -> str:
    times_us: dict[str, list[float]] = defaultdict(list)
    for operator in graph.operators:
        times_us[operator.name].append(operator.cost_us)
    slowest = sorted(times_us.items(), key=lambda item: (-sum(item[1]), item[0]))
    rows = [
        [name, str(len(each_us)), f"{sum(each_us) / 1e3:.1f} ms"]
        for name, each_us in slowest[:_NUM_LISTED]
    ]
    return table(["most time in", "number", "time"], rows)


def draw_memory(graph: OpGraph, title: str, path: Path) -> None:
    """Writes a PNG of the bytes alive while each operator runs.

    Raises:
        MemoptError: matplotlib is not there; the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MemoptError("--png draws with matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    live_gib = np.array(graph.live_bytes()) / 2**30
    axes.fill_between(np.arange(len(live_gib)), live_gib, step="mid", color="#2B8CD2", alpha=0.6)
    axes.set_xlim(0, max(len(live_gib) - 1, 1))
    axes.set_ylim(bottom=0)
    backward = next((n for n, op in enumerate(graph.operators) if op.backward), None)
    if backward is not None:
        axes.axvline(backward, color="black", linewidth=1, linestyle="--")
        axes.annotate(
            " backward",
            (backward, 0.98),
            xycoords=("data", "axes fraction"),
            verticalalignment="top",
        )
    axes.set_title(f"{title}, plain peak {format_bytes(graph.plain_peak_bytes())}")
    axes.set_xlabel("operator")
    axes.set_ylabel("GiB alive beyond what rests")
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise MemoptError(f"{path}: cannot be written: {error.strerror or error}") from error
