"""Random draws that depend on (seed, position) alone, for a few microseconds a sample.

A generator made anew for each sample takes longer than many a transform. A counter-based one
(Philox; J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is moved instead:
the position is the upper part of its counter, which the draws of one sample never reach.
"""

from __future__ import annotations

import numpy as np

from facetrain_datasets.orders import require


class SampleRandom:
    """One generator, moved from sample to sample.

    Raises:
        DatasetError: a negative seed.
    """

    def __init__(self, seed: int) -> None:
        require("seed", seed, seed >= 0, "0 or more")
        self._bits = np.random.Philox(np.random.SeedSequence(seed))
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def at(self, position: int) -> np.random.Generator:
        """The generator at the start of a sample's draws; it serves until the next call."""
        self._state["state"]["counter"][:] = (0, position, 0, 0)
        self._bits.state = self._state
        return self._generator
