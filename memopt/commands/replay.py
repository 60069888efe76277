"""Recompute overhead of a trace by policy and budget, in memory with addresses.

python -m memopt replay TRACE --budget 0.5 0.3 4GiB --policies dtr coop
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from memopt.arena import Allocator, Arena, CachingArena
from memopt.commands.budgets import add_trace_and_budgets, budget_bytes, summary
from memopt.errors import MemoptError
from memopt.policies import POLICIES, find_policy
from memopt.replay import Outcome, ReplayResult, replay
from memopt.tables import table
from memopt.traces import read_trace
from memopt.units import format_bytes

ARENAS = {"best_fit": Arena, "cuda": CachingArena}


def add_arguments(parser: ArgumentParser) -> None:
    add_trace_and_budgets(parser)
    parser.add_argument(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        metavar="POLICY",
        help=f"of {', '.join(POLICIES)}; default: all",
    )
    parser.add_argument(
        "--arena",
        choices=ARENAS,
        default="best_fit",
        help="one range of addresses, or PyTorch's CUDA caching allocator",
    )
    parser.add_argument(
        "--thrash-limit",
        type=float,
        default=10.0,
        metavar="TIMES",
        help="give up when recomputation takes more than this many plain iterations; default: 10",
    )


def run(options: Namespace) -> None:
    if not options.thrash_limit > 0:
        raise MemoptError(f"--thrash-limit {options.thrash_limit} must be above 0")
    policies = {name: find_policy(name) for name in options.policies}
    graph = read_trace(options.trace)
    budgets_bytes = [budget_bytes(graph, text) for text in options.budget]
    peak_bytes = graph.plain_peak_bytes()
    print(summary(options.trace, graph))
    rows = []
    for capacity in budgets_bytes:
        cells = [
            describe(
                replay(graph, policy, _arena(options, capacity), thrash_limit=options.thrash_limit)
            )
            for policy in policies.values()
        ]
        rows.append([f"{format_bytes(capacity)} ({capacity / peak_bytes:.0%})", *cells])
    print(table(["budget", *policies], rows))
    print("Recomputation over the plain iteration's time.")


def _arena(options: Namespace, capacity_bytes: int) -> Allocator:
    return ARENAS[options.arena](capacity_bytes)


def describe(result: ReplayResult) -> str:
    """One cell: the overhead in percent, or how it ended."""
    if result.outcome is Outcome.DONE:
        return f"{result.overhead:.1%}"
    return result.outcome.value
