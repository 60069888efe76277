from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import FaceBatch, IdentityDataset
from facetrain_datasets.transforms import Augmentation, Transform


def _noise(seed: int) -> Augmentation:
    def change(image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        return rng.integers(0, 256, image.shape, dtype=np.uint8)

    return Augmentation((Transform(1.0, change),), seed)


def _dataset(source: object, **changes: object) -> IdentityDataset:
    arguments: dict = {"image_size": 16, "allow_grey": False}
    return IdentityDataset(source, **{**arguments, **changes})


def _pixels(batch: FaceBatch, row: int = 0) -> np.ndarray:
    return batch.images[row].permute(1, 2, 0).numpy()


def test_batch_carries_images_labels_and_source_indices(make_source: Callable) -> None:
    dataset = _dataset(make_source(7))
    batch = dataset.__getitems__([(123, 4), (124, 0)])
    assert (batch.labels.tolist(), batch.indices.tolist(), len(dataset)) == ([1, 0], [4, 0], 7)
    np.testing.assert_array_equal(_pixels(batch), np.full((16, 16, 3), (4, 8, 251), np.uint8))
    np.testing.assert_array_equal(_pixels(batch), dataset.image(4))


def test_memory_of_a_batch_is_taken_again_only_when_nothing_of_it_is_in_use(
    make_source: Callable,
) -> None:
    dataset = _dataset(make_source(7))
    first = dataset.__getitems__([(0, 1), (1, 2)])
    address, kept = first.images.data_ptr(), first.images[:1, :, 3:5].numpy()[:, :, 1:]
    expected = kept.copy()
    del first
    second = dataset.__getitems__([(2, 3), (3, 4)])
    assert second.images.data_ptr() != address
    np.testing.assert_array_equal(kept, expected)
    del kept
    third = dataset.__getitems__([(4, 5), (5, 6)])
    assert third.images.data_ptr() == address
    np.testing.assert_array_equal(_pixels(second), dataset.image(3))
    np.testing.assert_array_equal(_pixels(third), dataset.image(5))
    other = dataset.__getitems__([(6, 0)])
    assert other.images.data_ptr() not in (second.images.data_ptr(), address)


def test_keep_selects_in_order_and_reports_source_indices(make_source: Callable) -> None:
    dataset = _dataset(make_source(9), keep=np.array([8, 0, 3]))
    assert dataset.labels.tolist() == [2, 0, 1]
    assert len(dataset) == 3
    batch = dataset.__getitems__([(0, 0), (1, 2)])
    assert (batch.indices.tolist(), batch.labels.tolist()) == ([8, 3], [2, 1])
    assert dataset.image(2)[0, 0, 0] == 3


def test_augmentation_depends_on_seed_and_position_only(make_source: Callable) -> None:
    source = make_source(4)
    image = _pixels(_dataset(source, augmentation=_noise(0)).__getitems__([(5, 1)]))
    other = _dataset(source, augmentation=_noise(0)).__getitems__([(4, 3), (5, 2), (6, 1)])
    np.testing.assert_array_equal(image, _pixels(other, 1))
    assert (image != _pixels(other, 2)).any()
    assert (image != _pixels(_dataset(source, augmentation=_noise(1)).__getitems__([(5, 1)]))).any()


def test_unreadable_image_is_skipped_with_its_name(make_source: Callable) -> None:
    source = make_source(5)
    source.images[3] = b"broken"
    batch = _dataset(source, keep=np.array([3, 4])).__getitems__([(0, 0), (1, 1)])
    assert batch.indices.tolist() == [4]
    assert batch.images.shape == (1, 3, 16, 16)
    (reason,) = batch.skipped
    assert reason.startswith("image3: not a readable image")


def test_failing_read_is_skipped_too(make_source: Callable) -> None:
    source = make_source(5)

    def fail(index: int) -> bytes:
        raise OSError(f"image{index}: disk is gone")

    source.read = fail
    batch = _dataset(source).__getitems__([(0, 2)])
    assert (len(batch), batch.skipped) == (0, ["image2: disk is gone"])


@pytest.mark.parametrize(
    ("keep", "message"),
    [([], "no image of 3 is kept"), ([0, 3], r"keep names image 3; .*0 \.\. 2")],
)
def test_wrong_keep_is_refused(make_source: Callable, keep: list[int], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        _dataset(make_source(3), keep=np.array(keep))
