"""Counts of labels, sizes, kinds and broken images of a small made-up set."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.inspection import survey_images, survey_labels

from .conftest import MemorySource


def test_labels_are_counted_and_gaps_named() -> None:
    survey = survey_labels(np.array([4, 0, 4, 4, 2, 0]), 6)
    assert (survey.num_images, survey.num_identities) == (6, 3)
    assert survey.gaps.tolist() == [1, 3, 5]
    assert survey.counts.tolist() == [1, 2, 3]


@pytest.fixture
def source(encode: Callable[[np.ndarray], bytes]) -> MemorySource:
    colour, grey = np.zeros((20, 30, 3), np.uint8), np.zeros((16, 16), np.uint8)
    jpeg = cv2.imencode(".jpg", colour)[1].tobytes()
    images = [encode(colour), jpeg, encode(grey), b"broken", jpeg[:40]] * 30
    return MemorySource(images, [0] * len(images))


def test_every_image_is_looked_at(source: MemorySource) -> None:
    done: list[int] = []
    survey = survey_images(source, progress=done.append)
    assert survey.num_checked == 150
    assert survey.kinds == {"png, colour": 30, "jpeg, colour": 30, "png, grey": 30}
    assert survey.sizes == {(30, 20): 60, (16, 16): 30}
    assert survey.num_bytes == 30 * sum(map(len, source.images[:3]))
    assert [bad.index for bad in survey.bad] == [i for i in range(150) if i % 5 > 2]
    assert done == [64, 128, 150]


def test_of_a_large_set_a_seeded_sample(source: MemorySource) -> None:
    first, second = (survey_images(source, limit=40, seed=3) for _ in range(2))
    assert first == second
    assert first.num_checked == 40
    with pytest.raises(DatasetError, match="limit is 0"):
        survey_images(source, limit=0)
