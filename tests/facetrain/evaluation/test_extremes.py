from __future__ import annotations

import numpy as np
import pytest

from facetrain.evaluation.extremes import Extremes, ScoredPair, worst_pairs


@pytest.mark.parametrize("num_kept", [0, 1, 5, 100])
@pytest.mark.parametrize("highest", [True, False])
def test_blocks_give_what_sorting_all_gives(num_kept: int, highest: bool) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 20, 60) / 20  # with ties: the first to come stays
    rows = np.arange(60)
    extremes = Extremes(num_kept, highest=highest)
    for start in range(0, 60, 7):
        block = slice(start, start + 7)
        extremes.add(scores[block], rows[block], rows[block] + 1)
    order = np.argsort(-scores if highest else scores, kind="stable")[:num_kept]
    assert extremes.pairs() == [ScoredPair(scores[row], row, row + 1) for row in order]


def test_worst_pairs_are_high_impostors_and_low_genuine_pairs() -> None:
    scores = np.array([0.9, 0.1, 0.8, 0.2])
    is_same = np.array([True, True, False, False])
    worst = worst_pairs(scores, np.arange(4), np.arange(4) + 10, is_same, num=1)
    assert worst.false_matches == [ScoredPair(0.8, 2, 12)]
    assert worst.misses == [ScoredPair(0.1, 1, 11)]
