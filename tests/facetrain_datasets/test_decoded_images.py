from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.errors import DatasetError


@pytest.fixture
def images(make_source: Callable) -> DecodedImages:
    return DecodedImages.of_source(make_source(5), image_size=16)


def test_it_is_a_sequence(images: DecodedImages) -> None:
    # conftest: image i is the colour (i, 2 i, 255 - i).
    assert len(images) == 5
    assert [int(image[0, 0, 0]) for image in images] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(images[-1], images[4])
    np.testing.assert_array_equal(images[np.int64(3)], images[3])
    assert [int(image[0, 0, 0]) for image in images[3:0:-2]] == [3, 1]


@pytest.mark.parametrize("index", [5, -6])
def test_no_such_image(images: DecodedImages, index: int) -> None:
    with pytest.raises(IndexError, match=f"image {index} of 5"):
        images[index]


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    images = DecodedImages.of_paths([tmp_path / "a.jpg"])
    with pytest.raises(DatasetError, match=r"a\.jpg: cannot be read \(No such file"):
        images[0]
