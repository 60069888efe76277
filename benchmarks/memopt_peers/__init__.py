"""Ways to train in less memory, one file each, in one form: rows of the table.

Adding one is a file and an entry in `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from memopt_peers import checkpoint, compiled, online, ours, selective
from memopt_peers.row import Row, RowOptions, plain

__all__ = ["PEERS", "Row", "RowOptions"]

#: Rows by label, under options.
PEERS: dict[str, Callable[[RowOptions], dict[str, Row]]] = {
    "plain": plain,
    "ours": ours.rows,
    "online": online.rows,
    "checkpoint": checkpoint.rows,
    "selective": selective.rows,
    "compile": compiled.rows,
}
