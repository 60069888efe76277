from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.transforms import (
    TRANSFORMS,
    Compose,
    color,
    crop,
    cutout,
    flip,
    grey,
    jpeg,
    low_resolution,
    mask,
)


def _image(height: int = 24, width: int = 20) -> np.ndarray:
    return np.random.default_rng(0).integers(60, 180, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_is_pure_and_seeded(name: str) -> None:
    results = []
    for seed in range(40):
        image = _image()
        first = TRANSFORMS[name](image, np.random.default_rng(seed))
        again = TRANSFORMS[name](image, np.random.default_rng(seed))
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(image, _image())
        assert first.dtype == np.uint8
        assert first.shape == image.shape
        results.append(first.tobytes())
    assert len(set(results)) > 1


def test_flip_mirrors_about_half_of_the_images() -> None:
    image = _image()
    flipped = [flip(image, np.random.default_rng(seed)) for seed in range(400)]
    mirrored = sum(np.array_equal(result, image[:, ::-1]) for result in flipped)
    assert mirrored + sum(np.array_equal(result, image) for result in flipped) == 400
    assert 150 < mirrored < 250  # five deviations of a fair coin


def test_color_equals_the_three_steps_one_after_another() -> None:
    image = _image()
    brightness, contrast, saturation = np.random.default_rng(3).uniform(0.7, 1.3, 3)
    luma = np.array([0.299, 0.587, 0.114])
    pixels = image.astype(np.float64)
    pixels = saturation * pixels + (1 - saturation) * (pixels @ luma)[:, :, None]
    mean = (image.astype(np.float64) @ luma).mean()
    pixels = brightness * (contrast * (pixels - mean) + mean)
    expected = np.clip(pixels, 0, 255)
    # Half a grey level of rounding, and 3 x 180 / 2**12 for OpenCV's fixed-point matrix.
    difference = np.abs(color(image, np.random.default_rng(3)) - expected)
    assert difference.max() <= 0.64


def test_cutout_changes_one_box_to_one_colour() -> None:
    image = _image()
    changed = next(
        result
        for seed in range(20)
        if (result := cutout(image, np.random.default_rng(seed))) is not image
    )
    rows, columns = np.nonzero((changed != image).any(axis=2))
    box = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert len(np.unique(box.reshape(-1, 3), axis=0)) == 1
    assert 4 <= box.shape[0] <= 11
    assert 4 <= box.shape[1] <= 9


def test_grey_gives_three_equal_channels() -> None:
    image = _image()
    changed = next(
        result
        for seed in range(100)
        if (result := grey(image, np.random.default_rng(seed))) is not image
    )
    assert (changed == changed[:, :, :1]).all()


def test_compose_runs_in_order_on_one_generator() -> None:
    image = _image()
    rng = np.random.default_rng(9)
    expected = TRANSFORMS["color"](TRANSFORMS["flip"](image, rng), rng)
    result = Compose(("flip", "color"))(image, np.random.default_rng(9))
    np.testing.assert_array_equal(result, expected)
    assert Compose(())(image, rng) is image


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(DatasetError, match=r"unknown transform 'mirror'; known: flip, color"):
        Compose(("flip", "mirror"))


def _changed(transform: Callable, image: np.ndarray) -> list[np.ndarray]:
    results = [transform(image, np.random.default_rng(seed)) for seed in range(400)]
    return [result for result in results if result is not image]


def test_crop_keeps_one_box_in_its_place_and_blackens_the_rest() -> None:
    image = _image(56, 56)
    changed = _changed(crop, image)
    assert 50 < len(changed) < 110  # four deviations about 80
    areas = []
    for result in changed:
        rows, columns = np.nonzero(result.any(axis=2))
        box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
        np.testing.assert_array_equal(result[box], image[box])
        areas.append(result[box].shape[0] * result[box].shape[1] / 56**2)
    assert 0.17 < min(areas) < 0.35
    assert 0.9 < max(areas) <= 1.0


def test_low_resolution_takes_detail_away_but_not_the_mean() -> None:
    image = _image(56, 56)
    changed = _changed(low_resolution, image)
    assert 50 < len(changed) < 110
    detail = [np.abs(np.diff(result.astype(float), axis=1)).mean() for result in changed]
    assert min(detail) < 0.4 * np.abs(np.diff(image.astype(float), axis=1)).mean()
    assert max(abs(result.mean() - image.mean()) for result in changed) < 5


def test_jpeg_keeps_the_colours_in_their_places() -> None:
    image = np.zeros((56, 56, 3), np.uint8)
    image[:] = (200, 90, 30)
    changed = _changed(jpeg, image)
    assert 50 < len(changed) < 110
    assert max(np.abs(result.astype(int) - image).max() for result in changed) <= 12
    noisy = _changed(jpeg, _image(56, 56))
    assert len({result.tobytes() for result in noisy}) > 20


def test_mask_covers_the_lower_face_and_leaves_the_eyes() -> None:
    image = _image(112, 112)
    changed = _changed(mask, image)
    assert 16 < len(changed) < 64
    for result in changed:
        np.testing.assert_array_equal(result[:51], image[:51])  # eyes: row 51.7
        assert len(np.unique(result[92].reshape(-1, 3), axis=0)) == 1  # mouth: row 92.4
