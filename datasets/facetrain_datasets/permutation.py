"""A seeded permutation of 0 .. n - 1 that is computed, not stored.

With hundreds of millions of images a shuffled index array costs gigabytes and seconds on every
rank and in every epoch. Here the i-th element is a function of (key, i): a balanced Feistel network
over the smallest even number of bits that hold n, walked along its cycle until the value is below n
(M. Luby and C. Rackoff, "How to construct pseudorandom permutations", 1988; J. Black and
P. Rogaway, "Ciphers with arbitrary finite domains", 2002). Resuming anywhere is free.

    image = permute(position, num_images, seed=7, stream=epoch)
"""

from __future__ import annotations

import numpy as np

_NUM_ROUNDS = 8
# Below 2 bits a side the rounds have too few functions to choose from: small n would see only some
# of its permutations. Cycle walking from 16 down to n costs nothing that matters there.
_MIN_HALF_BITS = 2


def permute(
    positions: np.ndarray, n: int | np.ndarray, *, seed: int, stream: int | np.ndarray
) -> np.ndarray:
    """Element `positions` of the permutation of 0 .. n - 1 that (seed, stream) name.

    Args:
        positions: int64, any shape, each in 0 .. n - 1.
        n: size of the permutation, 1 .. 2**62; one for all positions, or one for each.
        seed: non-negative.
        stream: non-negative; permutations of different streams are independent. One for all
            positions, or one for each.

    Returns:
        int64 of the shape of `positions`.
    """
    sizes = np.broadcast_to(np.asarray(n, np.uint64), positions.shape)
    streams = np.broadcast_to(np.asarray(stream, np.uint64), positions.shape)
    num_bits = np.frexp((sizes - np.uint64(1)).astype(np.float64))[1]
    half_bits = np.maximum(_MIN_HALF_BITS, (num_bits + 1) // 2).astype(np.uint64)
    round_keys = np.random.SeedSequence(seed).generate_state(_NUM_ROUNDS, np.uint64)
    keys = np.stack([mix(key ^ mix(streams + key)) for key in round_keys])
    values = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := values >= sizes).any():
        values[outside] = _feistel(values[outside], half_bits[outside], keys[:, outside])
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half_bits: np.ndarray, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << half_bits) | right


def mix(values: np.ndarray) -> np.ndarray:
    """Unrelated uint64 for each uint64, one to one: splitmix64's finaliser, modulo 2**64.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
