"""Which values an online policy may evict at any time, because they can always be made again."""

from __future__ import annotations

from memopt.graph import OpGraph, Replay, Role


def evictable_values(graph: OpGraph) -> list[bool]:
    """Of each value, whether it may be evicted: it can be made again as long as it is needed.

    Results stay, and what has no bytes. Others can be made again if their maker can be run again
    and whatever it reads is there, or can be made again, until the value's own end. A value that
    could not (its maker is a collective, say, or reads what is overwritten in the meantime) stays
    until the program drops it.
    """
    end = [graph.last_use[value.storage] for value in graph.values]
    newest: dict[int, int] = {}
    for number, value in enumerate(graph.values):
        if value.version == 0:
            newest[value.storage] = number
    for number, operator in enumerate(graph.operators):
        for made in operator.makes:
            storage = graph.values[made].storage
            if newest[storage] != made:
                end[newest[storage]] = number
                newest[storage] = made
    available_until = list(end)
    evictable = [False] * len(graph.values)
    for operator in graph.operators:
        remakable_until = min(
            (available_until[read] for read in operator.reads), default=len(graph.operators)
        )
        if operator.replay is Replay.NEVER:
            remakable_until = -1
        for made in operator.makes:
            kept_in = graph.storages[graph.values[made].storage]
            available_until[made] = max(end[made], remakable_until)
            evictable[made] = (
                kept_in.role is Role.ACTIVATION
                and kept_in.size_bytes > 0
                and remakable_until >= end[made]
            )
    return evictable
