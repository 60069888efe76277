from __future__ import annotations

from collections import Counter
from math import factorial

import numpy as np
import pytest

from facetrain_datasets.permutation import permute


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def _reference(position: int, n: int, seed: int, stream: int) -> int:
    """The same construction on Python integers, one element at a time."""
    half_bits = 2
    while 4**half_bits < n:
        half_bits += 1
    rounds = np.random.SeedSequence(seed).generate_state(8, np.uint64).tolist()
    keys = [_mix(key ^ _mix((stream + key) % 2**64)) for key in rounds]
    value = position
    while True:
        left, right = divmod(value, 2**half_bits)
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) % 2**half_bits)
        value = left * 2**half_bits + right
        if value < n:
            return value


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 1000, 4096, 4097, 70_001])
def test_every_element_comes_exactly_once(n: int) -> None:
    assert sorted(permute(np.arange(n), n, seed=3, stream=5).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 5, 64, 65, 10_000, 2**40 + 7])
def test_equals_the_reference_element_by_element(n: int) -> None:
    positions = np.unique(np.linspace(0, n - 1, 50).astype(np.int64))
    expected = [_reference(position, n, 11, 2) for position in positions.tolist()]
    permuted = permute(positions, n, seed=11, stream=2)
    assert permuted.dtype == np.int64
    assert permuted.tolist() == expected


def test_every_permutation_of_four_is_about_as_likely() -> None:
    trials = 40 * factorial(4)
    counts = Counter(
        tuple(permute(np.arange(4), 4, seed=0, stream=stream).tolist()) for stream in range(trials)
    )
    assert len(counts) == factorial(4)
    chi_squared = sum((count - 40) ** 2 / 40 for count in counts.values())
    assert chi_squared < 49.7  # 0.1 % point of chi-squared with 23 degrees of freedom


def test_neighbours_and_streams_are_unrelated() -> None:
    n = 10_000
    first, second = (permute(np.arange(n), n, seed=1, stream=stream) for stream in (0, 1))
    # A correlation of independent sequences has a deviation of 1 / sqrt(n) = 0.01.
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 0.04
    # Fixed points of a random permutation: Poisson with mean 1.
    assert (first == np.arange(n)).sum() < 8


def test_many_permutations_at_once_equal_each_alone() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 300, 200)
    streams = generator.integers(0, 2**40, 200)
    positions = generator.integers(0, sizes)
    together = permute(positions, sizes, seed=5, stream=streams)
    alone = [
        int(permute(np.array([position]), int(n), seed=5, stream=int(stream))[0])
        for position, n, stream in zip(positions, sizes, streams, strict=True)
    ]
    assert together.tolist() == alone
