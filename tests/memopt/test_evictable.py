"""What may be evicted at any time."""

from __future__ import annotations

from memopt.evictable import evictable_values
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value


def test_what_cannot_be_made_again_stays() -> None:
    graph = OpGraph(
        storages=(
            Storage(1, Role.RESTING),
            *(Storage(1) for _ in range(5)),
            Storage(1, Role.RESULT),
        ),
        values=(
            *(Value(0), Value(1), Value(2), Value(3)),
            *(Value(0, 1), Value(4), Value(5), Value(6)),
        ),
        operators=(
            Operator("all_reduce", (0,), (1,), 1.0, Replay.NEVER),
            Operator("from_weight", (0,), (2,), 1.0),  # outlives the weight's first contents
            Operator("from_reduced", (1,), (3,), 1.0),  # the reduced value lives longer
            Operator("step_", (0,), (4,), 1.0, Replay.NEVER),
            Operator("from_stepped", (4,), (5,), 1.0),
            Operator("from_pinned", (2,), (6,), 1.0),  # outlives what it was made from
            Operator("end", (3, 1, 2, 5), (7,), 1.0),
            Operator("last", (6, 7), (), 1.0),
        ),
        last_use=(8, 6, 6, 6, 6, 7, 8),
    )
    assert evictable_values(graph) == [False, False, False, True, False, True, False, False]
