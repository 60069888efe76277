from __future__ import annotations

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.transforms import TRANSFORMS, Compose, color, cutout, flip, grey


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
