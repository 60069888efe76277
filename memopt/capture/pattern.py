"""When two iterations are the same: the fingerprint of what was accessed, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from memopt.capture.recording import Call, Recording, SavedTensor, UnpackGroup, describe
from memopt.graph import OpGraph


def fingerprint(recording: Recording) -> str:
    """Hexadecimal text, the same for iterations that access memory alike.

    In it: operators with shapes, strides, types, devices and constants, values read and made,
    lifetimes, what is saved and when it is unpacked. Not in it: times and contents.
    """
    return recording.pattern


def settled(recordings: Sequence[Recording], *, num_equal: int = 2) -> Recording | None:
    """The last recording, if the last `num_equal` are the same iteration; else None.

    Each operator gets the least of its times in these: noise and first calls only ever add.
    """
    last = recordings[-num_equal:]
    if len(last) < num_equal or len({fingerprint(recording) for recording in last}) > 1:
        return None
    graphs = [recording.graph for recording in last]
    operators = tuple(
        replace(same[-1], cost_us=min(operator.cost_us for operator in same))
        for same in zip(*(graph.operators for graph in graphs), strict=True)
    )
    return replace(last[-1], graph=replace(graphs[-1], operators=operators))


def digest(
    graph: OpGraph,
    calls: Sequence[Call],
    saved: Sequence[SavedTensor],
    unpacks: Sequence[UnpackGroup],
) -> str:
    """Fingerprint of a recording in the making."""
    found = blake2b(digest_size=16)
    for operator, call in zip(graph.operators, calls, strict=True):
        arguments = describe((call.args, call.kwargs, call.results), with_offsets=True)
        found.update(
            f"{operator.name} {operator.reads} {operator.makes} {operator.backward} "
            f"{arguments}\n".encode()
        )
    for part in (graph.storages, graph.last_use, unpacks):
        found.update(repr(part).encode())
    for one in saved:
        geometry = describe(one.view, with_offsets=True)
        found.update(
            f"{one.view.value} {geometry} {one.packed_after} {one.released_after}\n".encode()
        )
    return found.hexdigest()
