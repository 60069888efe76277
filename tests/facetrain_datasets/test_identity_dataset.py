from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import IdentityDataset, Sample, SkippedImage


def _noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, image.shape, dtype=np.uint8)


def _dataset(source: object, **changes: object) -> IdentityDataset:
    arguments: dict = {"image_size": 16, "allow_grey": False, "transform": None, "seed": 0}
    return IdentityDataset(source, **{**arguments, **changes})


def test_sample_carries_image_label_and_source_index(make_source: Callable) -> None:
    dataset = _dataset(make_source(7))
    sample = dataset[123, 4]
    assert isinstance(sample, Sample)
    assert (sample.label, sample.index, len(dataset)) == (1, 4, 7)
    np.testing.assert_array_equal(sample.image, np.full((16, 16, 3), (4, 8, 251), np.uint8))
    np.testing.assert_array_equal(sample.image, dataset.image(4))


def test_keep_selects_in_order_and_reports_source_indices(make_source: Callable) -> None:
    dataset = _dataset(make_source(9), keep=np.array([8, 0, 3]))
    assert dataset.labels.tolist() == [2, 0, 1]
    assert len(dataset) == 3
    sample = dataset[0, 0]
    assert (sample.index, sample.label) == (8, 2)
    assert dataset.image(2)[0, 0, 0] == 3


def test_transform_depends_on_seed_and_position_only(make_source: Callable) -> None:
    source = make_source(4)
    image = _dataset(source, transform=_noise)[5, 1].image
    np.testing.assert_array_equal(image, _dataset(source, transform=_noise)[5, 2].image)
    assert (image != _dataset(source, transform=_noise)[6, 1].image).any()
    assert (image != _dataset(source, transform=_noise, seed=1)[5, 1].image).any()


def test_unreadable_image_is_skipped_with_its_name(make_source: Callable) -> None:
    source = make_source(5)
    source.images[3] = b"broken"
    item = _dataset(source, keep=np.array([3, 4]))[0, 0]
    assert isinstance(item, SkippedImage)
    assert item.index == 3
    assert item.reason.startswith("image3: not a readable image")


def test_failing_read_is_skipped_too(make_source: Callable, monkeypatch: object) -> None:
    source = make_source(5)

    def fail(index: int) -> bytes:
        raise OSError(f"image{index}: disk is gone")

    source.read = fail
    assert _dataset(source)[0, 2] == SkippedImage(2, "image2: disk is gone")


@pytest.mark.parametrize(
    ("keep", "message"),
    [([], "no image of 3 is kept"), ([0, 3], r"keep names image 3; .*0 \.\. 2")],
)
def test_wrong_keep_is_refused(make_source: Callable, keep: list[int], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        _dataset(make_source(3), keep=np.array(keep))
