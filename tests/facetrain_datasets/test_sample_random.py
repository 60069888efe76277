from __future__ import annotations

import pickle

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.sample_random import SampleRandom


def _draws(random: SampleRandom, position: int) -> tuple[float, list[int], float]:
    generator = random.at(position)
    return generator.random(), generator.integers(0, 256, 3).tolist(), generator.normal()


def test_draws_depend_on_seed_and_position_alone() -> None:
    random = SampleRandom(7)
    first = [_draws(random, position) for position in (0, 5, 2**40)]
    again = [_draws(random, position) for position in (2**40, 5, 0)][::-1]
    assert first == again == [_draws(SampleRandom(7), position) for position in (0, 5, 2**40)]
    assert first[0] != first[1]
    assert _draws(SampleRandom(8), 0) != first[0]


def test_a_draw_of_half_a_word_leaves_nothing_for_the_next_sample() -> None:
    random = SampleRandom(7)
    expected = random.at(1).integers(0, 256, 5, dtype=np.uint8).tolist()
    random.at(0).integers(0, 256, 3, dtype=np.uint8)
    assert random.at(1).integers(0, 256, 5, dtype=np.uint8).tolist() == expected


def test_neighbours_are_unrelated_and_uniform() -> None:
    random = SampleRandom(0)
    values = np.array([random.at(position).random(2) for position in range(4000)])
    # Correlations of independent draws have a deviation of 1 / sqrt(4000) = 0.016.
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.07
    assert abs(np.corrcoef(values[1:, 0], values[:-1, 0])[0, 1]) < 0.07
    counts = np.histogram(values, 20, (0.0, 1.0))[0]
    # 0.1 % point of chi-squared with 19 degrees of freedom.
    assert ((counts - 400) ** 2 / 400).sum() < 43.8


def test_single_draws_are_uniform_unrelated_and_independent_of_the_batch() -> None:
    random = SampleRandom(0)
    draws = random.uniform(np.arange(4000), 3)
    assert draws.shape == (4000, 3)
    assert (draws >= 0).all()
    assert (draws < 1).all()
    counts = np.histogram(draws, 20, (0.0, 1.0))[0]
    assert ((counts - 600) ** 2 / 600).sum() < 43.8
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.07
    assert abs(np.corrcoef(draws[1:, 0], draws[:-1, 0])[0, 1]) < 0.07
    np.testing.assert_array_equal(random.uniform(np.array([7, 3]), 3), draws[[7, 3]])
    assert (SampleRandom(1).uniform(np.arange(4000), 3) != draws).any(axis=1).all()


def test_it_survives_pickling_for_spawned_workers() -> None:
    random = SampleRandom(3)
    assert _draws(pickle.loads(pickle.dumps(random)), 9) == _draws(random, 9)


def test_negative_seed_is_refused() -> None:
    with pytest.raises(DatasetError, match="seed is -1; allowed: 0 or more"):
        SampleRandom(-1)
