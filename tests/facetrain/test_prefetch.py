from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from facetrain.prefetch import image_batches


class Images(Sequence[np.ndarray]):
    """Counts what it is asked for; image 23 is broken."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        if index == 23:
            raise ValueError("image 23")
        return np.full(1, index)


@pytest.mark.parametrize("num", [0, 1, 4, 5, 22])
@pytest.mark.parametrize("as_sequence", [True, False])
def test_batches_come_in_order_and_whole(num: int, as_sequence: bool) -> None:
    images = Images(num)
    given = images if as_sequence else (images[row] for row in range(num))
    batches = [[int(image[0]) for image in batch] for batch in image_batches(given, 4)]
    assert [row for batch in batches for row in batch] == list(range(num))
    assert all(len(batch) == 4 for batch in batches[:-1])
    assert sorted(images.asked) == list(range(num))


def test_an_error_comes_at_its_batch_and_little_is_read_beyond() -> None:
    images = Images(10_000)
    batches = image_batches(images, 4)
    for _ in range(5):
        next(batches)
    with pytest.raises(ValueError, match="image 23"):
        next(batches)
    assert max(images.asked) < 200


def test_leaving_early_stops_reading() -> None:
    images = Images(10_000)
    batches = image_batches(images, 2)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(images.asked) < 100
