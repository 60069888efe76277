"""What planners make of a trace: recompute overhead by planner and budget.

python -m memopt plan TRACE --budget 0.5 0.3 4GiB --planners offline sublinear
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from memopt.commands.budgets import add_trace_and_budgets, budget_bytes, summary
from memopt.errors import BudgetTooSmallError
from memopt.graph import OpGraph
from memopt.placement import place
from memopt.planned_lifetimes import planned_lifetimes
from memopt.planners import PLANNERS, Planner, find_planner
from memopt.simulate import simulate
from memopt.tables import table
from memopt.traces import read_trace
from memopt.units import format_bytes


def add_arguments(parser: ArgumentParser) -> None:
    add_trace_and_budgets(parser)
    parser.add_argument(
        "--planners",
        nargs="+",
        default=["offline", "sublinear"],
        metavar="PLANNER",
        help=f"of {', '.join(PLANNERS)}; default: offline sublinear",
    )


def run(options: Namespace) -> None:
    planners = {name: find_planner(name) for name in options.planners}
    graph = read_trace(options.trace)
    sizes = [budget_bytes(graph, text) for text in options.budget]
    peak_bytes = graph.plain_peak_bytes()
    print(summary(options.trace, graph))
    rows = [
        [
            f"{format_bytes(size)} ({size / peak_bytes:.0%})",
            *(describe(graph, planner, size) for planner in planners.values()),
        ]
        for size in sizes
    ]
    print(table(["budget", *planners], rows))
    print(
        "Recomputation over the plain iteration's time, and the height of one range of addresses\n"
        "with all that is alive in it, over the planned peak."
    )


def describe(graph: OpGraph, planner: Planner, size_bytes: int) -> str:
    """One cell."""
    try:
        schedule = planner(graph, size_bytes)
    except BudgetTooSmallError as error:
        return f"least {format_bytes(error.least_bytes, round_up=True)}"
    placement = place(planned_lifetimes(graph, schedule))
    overhead = simulate(graph, schedule).recompute_us / max(graph.total_cost_us(), 1e-9)
    return f"{overhead:.1%}, {placement.over_bound:.2f}"
