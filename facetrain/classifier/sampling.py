"""Which classes take part in a step: the batch's own, and a random share of the others.

Partial FC (An et al., CVPR 2022). Whether a class is drawn depends on (seed, step, class) only, by
a hash: every rank draws for its own classes without a message, any number of ranks draws the same
classes, and the whole state is one step number.

With C classes, P of them positive (in the global batch), each other class is drawn with
probability max(0, (r C - P) / (C - P)): r C classes in the mean, with a standard deviation below
sqrt(r C), or the P positives where they are more.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 31


class ClassSampler:
    """Draws the classes in use.

    Args:
        rate: r, in (0, 1].
        num_classes: C, over all ranks.

    Attributes:
        step: number of the next draw; the state to be saved.
    """

    def __init__(self, rate: float, num_classes: int, seed: int) -> None:
        self.rate = rate
        self.step = 0
        self._num_classes = num_classes
        self._seed = seed

    def draw(self, labels_n: Tensor, first: int, count: int) -> Tensor:
        """Classes in use among those from `first` on, as ascending offsets from it.

        Every rank passes the same labels; the step number is not advanced.

        Args:
            labels_n: of the whole global batch, int64 [N].
            first: first class of this rank.
            count: classes of this rank.
        """
        positive = torch.zeros(count, dtype=torch.bool, device=labels_n.device)
        local = labels_n[(labels_n >= first) & (labels_n < first + count)] - first
        positive[local] = True
        num_positive = len(labels_n.unique())
        others = self._num_classes - num_positive
        wanted = self.rate * self._num_classes - num_positive
        share = max(0.0, wanted / others) if others else 0.0
        classes = torch.arange(first, first + count, device=labels_n.device)
        hashed = _hash(classes, self._seed * 0x9E3779B1 + self.step)
        return (positive | (hashed < round(share * 2**_BITS))).nonzero().squeeze(1)


def _hash(numbers: Tensor, key: int) -> Tensor:
    """Uniform integers below 2**31 from `numbers` and `key`, int64: multiply and xorshift, twice.

    Each factor is below 2**31 and each number below 2**32, so int64 products cannot overflow.
    """
    mask = 2**32 - 1
    values = numbers & mask
    for factor, offset in ((0x45D9F3B3, key & mask), (0x2C1B3C6D, (key >> 32) & mask)):
        values = values ^ offset
        values = ((values ^ (values >> 16)) * (factor & 0x7FFFFFFF)) & mask
        values = ((values ^ (values >> 15)) * 0x297A2D39) & mask
        values = values ^ (values >> 16)
    return values >> (32 - _BITS)
