from __future__ import annotations

import numpy as np

from facetrain_datasets.synthetic import canvas


def test_bumps_equal_the_sum_of_gaussians_one_by_one() -> None:
    table = np.random.default_rng(0).uniform((-30, -30, 2, 2, -5), (30, 30, 9, 9, 5), (6, 5))
    expected = np.zeros((canvas.FIELD, canvas.FIELD))
    for x, y, dx, dy, height in table:
        across = (canvas.X[None, :] - x) / dx
        down = (canvas.Y[:, None] - y) / dy
        expected += height * np.exp(-0.5 * (across**2 + down**2))
    np.testing.assert_allclose(canvas.bumps(table), expected, atol=1e-4)  # float32 exponentials


def test_mirrored_repeats_every_row_at_minus_x() -> None:
    both = canvas.mirrored([(3.0, 1.0, 2.0, 2.0, 5.0)])
    field = canvas.bumps(both)
    np.testing.assert_allclose(field, field[:, ::-1], atol=1e-5)


def test_fill_covers_the_area_of_the_polygon() -> None:
    mask = canvas.empty_mask()
    canvas.fill(
        mask, np.array([(-20.0, -10.0), (20.0, -10.0), (20.0, 30.0), (-20.0, 30.0)]), (255,)
    )
    area = mask.sum() / 255 / canvas.PER_UNIT**2
    assert (
        abs(area - 40 * 40) < 40 * 4
    )  # OpenCV's polygons own their border: half a pixel each side
    rows = np.flatnonzero(mask.any(axis=1))
    assert canvas.rows(-10.0, 30.0).start - 1 <= rows[0]
    assert rows[-1] <= canvas.rows(-10.0, 30.0).stop


def test_blend_of_a_colour_and_an_image_agree_with_the_formula() -> None:
    rng = np.random.default_rng(0)
    below, above = rng.integers(0, 256, (2, 10, 10, 3), dtype=np.uint8)
    mask = rng.integers(0, 256, (10, 10), dtype=np.uint8)
    weight = mask[:, :, None] / 255
    # Two roundings of half a level.
    expected = below * (1 - weight) + above * weight
    assert np.abs(canvas.blend(below, mask, above) - expected).max() <= 1.01
    color = np.array((200.0, 30.0, 90.0))
    expected = below * (1 - weight) + color * weight
    assert np.abs(canvas.blend(below, mask, color) - expected).max() <= 1.01
