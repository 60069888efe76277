"""Random draws that depend on (seed, position) alone, for a few microseconds a sample.

A generator made anew for each sample takes longer than many a transform. A counter-based one
(Philox; J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is moved instead:
the position is the upper part of its counter, which the draws of one sample never reach.
"""

from __future__ import annotations

import numpy as np

from facetrain_datasets.orders import require
from facetrain_datasets.permutation import mix


class SampleRandom:
    """One generator, moved from sample to sample; and single draws for many samples at once.

    Raises:
        DatasetError: a negative seed.
    """

    def __init__(self, seed: int) -> None:
        require("seed", seed, seed >= 0, "0 or more")
        sequence = np.random.SeedSequence(seed)
        self._key = sequence.generate_state(1, np.uint64)
        self._bits = np.random.Philox(sequence)
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def at(self, position: int) -> np.random.Generator:
        """The generator at the start of a sample's draws; it serves until the next call."""
        self._state["state"]["counter"][:] = (0, position, 0, 0)
        self._bits.state = self._state
        return self._generator

    def uniform(self, positions: np.ndarray, num_draws: int) -> np.ndarray:
        """Draws from [0, 1), float64 [len(positions), num_draws], of int64 `positions`."""
        columns = mix(np.arange(num_draws, dtype=np.uint64) + self._key)
        bits = mix(mix(positions.astype(np.uint64) + self._key)[:, None] ^ columns)
        return (bits >> np.uint64(11)) * 2.0**-53
