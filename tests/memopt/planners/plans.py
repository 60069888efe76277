"""Every plan of a small graph, by simulation of each choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from memopt.errors import MemoptError
from memopt.graph import OpGraph
from memopt.schedule import Gap, Lives, Schedule
from memopt.simulate import simulate
from tests.memopt.graphs import random_graph


def _choices(graph: OpGraph) -> list[list[Gap | None]]:
    lives = Lives(graph)
    return [
        [
            None,
            *(
                gap._replace(end=end)
                for end in range(gap.start + 2, gap.end + 1)
                if lives.recomputes_at(end)
            ),
        ]
        for gaps in lives.gaps
        for gap in gaps
    ]


def every_plan(graph: OpGraph) -> list[tuple[int, float]]:
    """Peak and time of every choice, for each gap, of no drop or one that ends at any operator."""
    found = []
    for chosen in itertools.product(*_choices(graph)):
        try:
            result = simulate(graph, Schedule(frozenset(gap for gap in chosen if gap is not None)))
        except MemoptError:
            continue
        found.append((result.peak_bytes, result.recompute_us))
    return found


def small_graphs(
    num_seeds: int, in_place: float = 0.15
) -> Iterator[tuple[OpGraph, list[tuple[int, float]]]]:
    """Graphs with 20 to 600 plans, and those."""
    for seed in range(num_seeds):
        graph = random_graph(seed, num_operators=9, in_place=in_place, controlled=seed % 3 == 0)
        if 20 <= math.prod(len(choices) for choices in _choices(graph)) <= 600:
            yield graph, every_plan(graph)
