"""Images in batches, decoded by threads while earlier ones are at work."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

_MAX_THREADS = 8


def image_batches(images: Iterable[np.ndarray], batch_size: int) -> Iterator[list[np.ndarray]]:
    """Batches in order, the last one smaller.

    Args:
        images: a sequence, which threads index ahead of what is asked for (decoding holds no
            interpreter lock), or anything else, which is read as it comes.
        batch_size: images each.
    """
    if not isinstance(images, Sequence):
        remaining = iter(images)
        while batch := list(itertools.islice(remaining, batch_size)):
            yield batch
        return

    def decode(start: int) -> list[np.ndarray]:
        return [images[row] for row in range(start, min(start + batch_size, len(images)))]

    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        ahead: deque[Future[list[np.ndarray]]] = deque()
        for start in range(0, len(images), batch_size):
            ahead.append(pool.submit(decode, start))
            if len(ahead) > num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
