"""Initial class centers, the same for any cut of the classes over ranks."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS_PER_SEED = 1024
_INITIAL_STD = 0.01


def fill_initial_rows(rows: Tensor, first: int, seed: int) -> None:
    """Draw rows first, first + 1, ... of the initial centers from N(0, 0.01), in place.

    A row depends on the seed and its number only; no second copy of the rows is made.

    Args:
        rows: to fill, [count, D].
    """
    done = 0
    while done < len(rows):
        block, offset = divmod(first + done, _ROWS_PER_SEED)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
        drawn = torch.randn((_ROWS_PER_SEED, rows.shape[1]), generator=generator)
        taken = min(_ROWS_PER_SEED - offset, len(rows) - done)
        rows[done : done + taken] = drawn[offset : offset + taken].mul_(_INITIAL_STD)
        done += taken
