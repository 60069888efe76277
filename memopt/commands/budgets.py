"""What commands share that try budgets on a trace: their options, and how a budget is read."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from pathlib import Path

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.units import format_bytes, parse_bytes


def add_trace_and_budgets(parser: ArgumentParser) -> None:
    """Declares the trace and `--budget`."""
    parser.add_argument("trace", type=Path, help="file of a trace (memopt's format or DTR's)")
    parser.add_argument(
        "--budget",
        nargs="+",
        default=["0.5", "0.3"],
        metavar="BUDGET",
        help="shares of the plain peak (0.5), or sizes (4GiB); default: 0.5 0.3",
    )


def summary(trace: Path, graph: OpGraph) -> str:
    """The trace in a line."""
    return (
        f"{trace.name}: {len(graph.operators)} operators, plain peak "
        f"{format_bytes(graph.plain_peak_bytes())}, {graph.total_cost_us() / 1e3:.1f} ms"
    )


def budget_bytes(graph: OpGraph, text: str) -> int:
    """Bytes that a budget names: a bare number is a share of the plain peak.

    Raises:
        MemoptError: neither a share above 0 nor a size; nothing to budget.
    """
    peak_bytes = graph.plain_peak_bytes()
    if not peak_bytes:
        raise MemoptError(
            "the iteration makes nothing that takes memory: there is no budget to set"
        )
    try:
        share = float(text)
    except ValueError:
        return parse_bytes(text)
    if not (math.isfinite(share) and share * peak_bytes >= 1):
        raise MemoptError(
            f"budget {text!r} must be a share of the plain peak above 0, as 0.5, or a size, as 4GiB"
        )
    return int(share * peak_bytes)
