"""Iterations as files: `read_trace(path)`, of memopt's own format or DTR's; `write_graph`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.traces.dtr_log import read_dtr_log
from memopt.traces.graph_file import FORMAT, read_graph, write_graph
from memopt.traces.lines import read_lines

__all__ = ["read_trace", "write_graph"]


def read_trace(path: Path) -> OpGraph:
    """The iteration in a file, plain or gzip; its first line tells which format it is.

    Raises:
        MemoptError: the file cannot be read, is cut, or is wrong; file and line are named.
    """
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise MemoptError(f"{path}: the file is empty")
    if first.fields.get("format") == FORMAT:
        return read_graph(first, lines)
    if "INSTRUCTION" in first.fields:
        return read_dtr_log(chain([first], lines))
    raise first.wrong(
        f'neither a memopt trace ("format": "{FORMAT}") nor one of DTR ("INSTRUCTION": ...)'
    )
