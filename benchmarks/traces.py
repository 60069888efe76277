"""Online policies over operator traces published with DTR, in memory with addresses.

    python benchmarks/traces.py DIR/*.log.gz

The traces are not part of the project: get them from uwsampl/dtr-prototype (simrd/logs.zip) and
name the files here. Tables of recomputation over the plain iteration's time, at the budgets of each
network in BUDGETS (shares of the plain peak, constants apart), or those of --budget. Deterministic;
costs are the times in the traces.

`best_fit` is one range of addresses; `cuda` PyTorch's caching allocator, which can give segments
back and so join memory that does not lie together, at the price of stopping the device: how often,
stands behind the overhead. `plan` is the offline planner, which knows the iteration; its budget is
on what is alive, before placement.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from memopt.arena import Arena, CachingArena
from memopt.commands.replay import describe
from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.placement import graph_lifetimes, place
from memopt.planners import find_planner
from memopt.policies import POLICIES
from memopt.replay import replay
from memopt.simulate import simulate
from memopt.tables import table
from memopt.traces import read_trace
from memopt.units import format_bytes

#: By how the file's name begins.
BUDGETS = {
    "resnet32": (0.5, 0.2),
    "transformer": (0.3, 0.2),
    "tv_densenet": (0.3,),
    "unet": (0.5, 0.4),
    "inceptionv4": (0.5, 0.3),
}
OTHER_BUDGETS = (0.5, 0.3)


def best_fit_cell(graph: OpGraph, policy: str, capacity_bytes: int, limit: float) -> str:
    return describe(replay(graph, POLICIES[policy], Arena(capacity_bytes), thrash_limit=limit))


def cuda_cell(graph: OpGraph, policy: str, capacity_bytes: int, limit: float) -> str:
    arena = CachingArena(capacity_bytes)
    cell = describe(replay(graph, POLICIES[policy], arena, thrash_limit=limit))
    return f"{cell} [{arena.num_given_back}]" if cell.endswith("%") else cell


def plan_cell(graph: OpGraph, planner: str, budget_bytes: int, limit: float) -> str:
    started = time.perf_counter()
    try:
        simulation = simulate(graph, find_planner(planner)(graph, budget_bytes))
    except MemoptError:
        return "none found"
    seconds = time.perf_counter() - started
    return f"{simulation.recompute_us / graph.total_cost_us():.1%} in {seconds:.1f} s"


#: What fills a cell, and its columns.
TABLES = {
    "best_fit": (best_fit_cell, tuple(POLICIES)),
    "cuda": (cuda_cell, tuple(POLICIES)),
    "plan": (plan_cell, ("offline",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--budget", nargs="+", type=float, help="shares of the plain peak")
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--thrash-limit", type=float, default=10.0)
    options = parser.parse_args()
    try:
        graphs = {path.name.split("-")[0]: read_trace(path) for path in options.traces}
    except MemoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, graph in graphs.items():
        placement = place(list(graph_lifetimes(graph).values()))
        print(
            f"{name}: {len(graph.operators)} operators, {graph.total_cost_us() / 1e3:.0f} ms, "
            f"plain peak {format_bytes(graph.plain_peak_bytes())}, "
            f"placed in {placement.over_bound:.4f} of it"
        )
    for kind in options.table:
        cell, columns = TABLES[kind]
        rows = []
        started = time.perf_counter()
        for name, graph in graphs.items():
            usual = next((b for key, b in BUDGETS.items() if name.startswith(key)), OTHER_BUDGETS)
            for share in options.budget or usual:
                budget_bytes = int(share * graph.plain_peak_bytes())
                cells = [
                    cell(graph, column, budget_bytes, options.thrash_limit) for column in columns
                ]
                rows.append([f"{name} {share:g}", *cells])
        print(f"\n{table([kind, *columns], rows)}")
        print(f"{time.perf_counter() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
