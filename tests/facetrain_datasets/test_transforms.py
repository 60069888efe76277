from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.transforms import (
    TRANSFORMS,
    Augmentation,
    Transform,
    color,
    crop,
    cutout,
    grey,
    jpeg,
    low_resolution,
    mask,
)


def _image(height: int = 24, width: int = 20) -> np.ndarray:
    return np.random.default_rng(0).integers(60, 180, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_is_pure_and_seeded(name: str) -> None:
    transform = TRANSFORMS[name]
    results = []
    for seed in range(40):
        image = _image()
        first = transform.change(image, np.random.default_rng(seed))
        again = transform.change(image, np.random.default_rng(seed))
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(image, _image())
        assert first.dtype == np.uint8
        assert first.shape == image.shape
        results.append(first.tobytes())
    assert len(set(results)) > 1 or not transform.draws
    if not transform.draws:
        np.testing.assert_array_equal(transform.change(_image(), None), first)


def test_flip_mirrors_about_half_of_the_images() -> None:
    image = _image()
    flipped = [_augmented(("flip",), image, position) for position in range(400)]
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
    changed = cutout(image, np.random.default_rng(0))
    rows, columns = np.nonzero((changed != image).any(axis=2))
    box = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert len(np.unique(box.reshape(-1, 3), axis=0)) == 1
    assert 4 <= box.shape[0] <= 11
    assert 4 <= box.shape[1] <= 9


def test_grey_gives_three_equal_channels() -> None:
    image = _image()
    changed = grey(image)
    assert (changed == changed[:, :, :1]).all()


def _augmented(names: tuple[str, ...], image: np.ndarray, position: int) -> np.ndarray:
    augmentation = Augmentation(names, seed=0)
    (chosen,) = augmentation.choose([position])
    return augmentation.apply(image, position, chosen)


def test_augmentation_runs_in_order_on_one_generator() -> None:
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Transform:
        def change(image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
            seen.append((name, 0.0 if rng is None else rng.random()))
            return image

        return Transform(1.0, change)

    augmentation = Augmentation((note("a"), note("b")), seed=4)
    for position in (8, 9, 8):
        (chosen,) = augmentation.choose([position])
        augmentation.apply(_image(), position, chosen)
    assert [name for name, _ in seen] == ["a", "b"] * 3
    assert seen[:2] == seen[4:] != seen[2:4]
    assert seen[0][1] != seen[1][1]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_is_made_as_often_as_it_says(name: str) -> None:
    chosen = Augmentation((name,), seed=0).choose(range(4000))
    expected = TRANSFORMS[name].probability
    share = sum(map(len, chosen)) / 4000
    assert abs(share - expected) <= 4 * (expected * (1 - expected) / 4000) ** 0.5


def test_what_is_chosen_depends_on_seed_and_position_alone() -> None:
    augmentation = Augmentation(tuple(TRANSFORMS), seed=0)
    together = augmentation.choose(range(50))
    assert [augmentation.choose([p])[0] for p in range(50)] == together
    assert Augmentation(tuple(TRANSFORMS), seed=1).choose(range(50)) != together
    assert Augmentation((), seed=0).choose(range(3)) == [[], [], []]
    assert augmentation.choose([]) == []


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(DatasetError, match=r"unknown transform 'mirror'; known: flip, color"):
        Augmentation(("flip", "mirror"), seed=0)


def _changed(change: Callable, image: np.ndarray) -> list[np.ndarray]:
    return [change(image, np.random.default_rng(seed)) for seed in range(80)]


def test_crop_keeps_one_box_in_its_place_and_blackens_the_rest() -> None:
    image = _image(56, 56)
    changed = _changed(crop, image)
    areas = []
    for result in changed:
        rows, columns = np.nonzero(result.any(axis=2))
        box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
        np.testing.assert_array_equal(result[box], image[box])
        areas.append(result[box].shape[0] * result[box].shape[1] / 56**2)
    assert 0.17 < min(areas) < 0.3
    assert 0.9 < max(areas) <= 1.0


def test_low_resolution_takes_detail_away_but_not_the_mean() -> None:
    image = _image(56, 56)
    changed = _changed(low_resolution, image)
    detail = [np.abs(np.diff(result.astype(float), axis=1)).mean() for result in changed]
    assert min(detail) < 0.4 * np.abs(np.diff(image.astype(float), axis=1)).mean()
    assert max(abs(result.mean() - image.mean()) for result in changed) < 5


def test_jpeg_keeps_the_colours_in_their_places() -> None:
    image = np.zeros((56, 56, 3), np.uint8)
    image[:] = (200, 90, 30)
    changed = _changed(jpeg, image)
    assert max(np.abs(result.astype(int) - image).max() for result in changed) <= 12
    noisy = _changed(jpeg, _image(56, 56))
    assert len({result.tobytes() for result in noisy}) > 20


def test_mask_covers_the_lower_face_and_leaves_the_eyes() -> None:
    image = _image(112, 112)
    changed = _changed(mask, image)
    for result in changed:
        np.testing.assert_array_equal(result[:51], image[:51])  # eyes: row 51.7
        assert len(np.unique(result[92].reshape(-1, 3), axis=0)) == 1  # mouth: row 92.4
