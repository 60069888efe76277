from __future__ import annotations

import time
from dataclasses import fields
from itertools import combinations

import cv2
import numpy as np
import pytest

from facetrain_datasets.synthetic import FaceRenderer, render_face
from facetrain_datasets.synthetic.draws import draw
from facetrain_datasets.synthetic.person import Identity, View


@pytest.fixture(scope="module")
def photos() -> np.ndarray:
    """uint8 [12 persons, 6 photos, 112, 112, 3]."""
    return np.array([[render_face(person, photo) for photo in range(6)] for person in range(12)])


def test_photo_is_a_uint8_image_of_the_size_asked() -> None:
    for size in (112, 64, 113):
        photo = render_face(1, 2, size)
        assert photo.dtype == np.uint8
        assert photo.shape == (size, size, 3)


def test_same_seeds_give_the_same_photo_in_any_order(photos: np.ndarray) -> None:
    renderer = FaceRenderer(4)
    for photo in (5, 0, 3):
        np.testing.assert_array_equal(renderer.render(photo), photos[4, photo])


def test_every_photo_is_another_one_and_shows_something(photos: np.ndarray) -> None:
    flat = photos.reshape(-1, 112 * 112 * 3).astype(np.float32)
    for one, other in combinations(flat, 2):
        assert np.abs(one - other).mean() > 3.0
    assert flat.std(axis=1).min() > 8.0


def test_small_and_large_photos_show_the_same_face() -> None:
    large = cv2.resize(render_face(3, 1, 224), (112, 112), interpolation=cv2.INTER_AREA)
    difference = np.abs(large.astype(float) - render_face(3, 1, 112)).mean()
    assert difference < 8.0  # noise differs, and blur is in pixels


def test_light_and_pose_vary_more_than_the_person_in_raw_pixels(photos: np.ndarray) -> None:
    flat = photos.reshape(12, 6, -1).astype(np.float64)
    flat -= flat.mean(axis=(0, 1))
    within = flat.var(axis=1, ddof=1).mean()
    between = flat.mean(axis=1).var(axis=0, ddof=1).mean() - within / 6
    assert within > 2.0 * between


def test_renderer_is_cheap() -> None:
    renderer = FaceRenderer(0)
    renderer.render(0)
    seconds = []
    for photo in range(20):
        start = time.process_time()
        renderer.render(photo)
        seconds.append(time.process_time() - start)
    # About 3 ms; the bound leaves room for a slow or busy machine.
    assert min(seconds) < 0.015


@pytest.mark.parametrize("record", [Identity, View])
def test_records_draw_every_field_within_its_span(record: type) -> None:
    rng = np.random.default_rng(0)
    drawn = [draw(record, rng) for _ in range(200)]
    for field in fields(record):
        low, high = field.metadata["span"]
        values = [getattr(one, field.name) for one in drawn]
        assert low <= min(values) < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < max(values) <= high


@pytest.mark.parametrize("extreme", [0, 1])
def test_extremes_of_every_span_can_be_drawn(extreme: int) -> None:
    view = View(*(field.metadata["span"][extreme] for field in fields(View)))
    for person in range(6):
        photo = FaceRenderer(person).photograph(view, np.random.default_rng(0))
        assert photo.shape == (112, 112, 3)
