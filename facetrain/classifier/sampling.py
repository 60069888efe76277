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
_BLOCK = 2**18
"""Classes hashed at a time: numbers of 8 bytes, of all classes, would take memory."""
_MASK = 2**32 - 1


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
        limit = round(share * 2**_BITS)
        for start in range(0, count, _BLOCK):
            block = positive[start : start + _BLOCK]
            classes = torch.arange(len(block), device=labels_n.device).add_(first + start)
            block |= _hash(classes, self._seed, self.step) < limit
        return positive.nonzero().squeeze(1)


def _hash(numbers: Tensor, seed: int, step: int) -> Tensor:
    """Uniform integers below 2**31 from each number, the seed and the step, int64.

    Between the two mixings another part of the key comes in, so that draws of two steps are not
    each other's permutation.
    """
    first, second = divmod(_splitmix64(_splitmix64(seed) + step), 2**32)
    return _mix(((_mix(numbers & _MASK) ^ first) + second) & _MASK) >> (32 - _BITS)


def _mix(values: Tensor) -> Tensor:
    """A 32-bit finaliser in int64; each factor is below 2**31, so that no product overflows.

    Constants of the prospector project's two-round hash of least bias.
    """
    values = values ^ (values >> 16)
    values.mul_(0x21F0AAAD).bitwise_and_(_MASK).bitwise_xor_(values >> 15)
    values.mul_(0x735A2D97).bitwise_and_(_MASK)
    return values.bitwise_xor_(values >> 15)


def _splitmix64(number: int) -> int:
    """Steele, Lea and Flood 2014: a 64-bit number from which no pattern of its input shows."""
    mask = 2**64 - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)
