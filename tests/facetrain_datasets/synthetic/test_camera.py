from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from facetrain_datasets.synthetic import camera, canvas, head
from facetrain_datasets.synthetic.draws import draw
from facetrain_datasets.synthetic.person import Identity, View


def _view(**changes: float) -> View:
    return replace(draw(View, np.random.default_rng(0)), **changes)


def test_rotation_is_orthonormal_and_right_handed() -> None:
    turn = camera.rotation(_view())
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(turn) == pytest.approx(1.0)


def test_yaw_moves_what_is_near_to_the_right() -> None:
    turn = camera.rotation(_view(yaw=0.3, pitch=0.0, roll=0.0))
    x, y, _ = turn @ (0.0, 0.0, 10.0)
    assert x == pytest.approx(10 * np.sin(0.3))
    assert y == 0.0


def test_alignment_undoes_any_similarity() -> None:
    angle, scale = 0.4, 1.7
    matrix = scale * np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    points = camera.TEMPLATE @ matrix.T + (5.0, -9.0)
    align = camera.alignment(points, zoom=1.0, roll=0.0)
    np.testing.assert_allclose(points @ align[:, :2].T + align[:, 2], camera.TEMPLATE, atol=1e-9)


def test_alignment_is_the_least_squares_similarity() -> None:
    points = camera.TEMPLATE + np.random.default_rng(0).normal(0, 3, (5, 2))
    # a x - b y + tx and b x + a y + ty, solved as ten linear equations.
    x, y = points.T
    one, zero = np.ones(5), np.zeros(5)
    rows = np.concatenate([np.column_stack([x, -y, one, zero]), np.column_stack([y, x, zero, one])])
    a, b, tx, ty = np.linalg.lstsq(rows, camera.TEMPLATE.T.ravel(), rcond=None)[0]
    align = camera.alignment(points, zoom=1.0, roll=0.0)
    np.testing.assert_allclose(align, [(a, -b, tx), (b, a, ty)], atol=1e-9)


def test_face_map_shows_the_point_whose_projection_a_pixel_is() -> None:
    view = _view(yaw=0.4, pitch=-0.2, roll=0.03, mouth_open=0.0)
    who = draw(Identity, np.random.default_rng(3))
    height = head.heights(who, head.Expression.of(who, view), wider=4.0)
    turn = camera.rotation(view)
    align = np.array([(0.98, 0.03, 56.0), (-0.03, 0.98, 70.0)])
    map_x, map_y = camera.face_map(turn, align, height, 112)
    errors = []
    for row, column in np.ndindex(8, 8):
        v, u = 30 + 8 * row, 30 + 8 * column  # the inner face, where the outline does not matter
        x = (map_x[v, u] + 0.5) / canvas.PER_UNIT + canvas.LEFT
        y = (map_y[v, u] + 0.5) / canvas.PER_UNIT + canvas.TOP
        z = height[int((y - canvas.TOP) * canvas.FIELD_PER_UNIT)][
            int((x - canvas.LEFT) * canvas.FIELD_PER_UNIT)
        ]
        seen = align[:, :2] @ (turn @ (x, y, z))[:2] + align[:, 2]
        errors.append(np.abs(seen - (u + 0.5, v + 0.5)).max())
    # Heights are read from the nearest of pixels two units wide here, and interpolated there.
    assert np.median(errors) < 0.5
    assert max(errors) < 3.0


def test_plane_map_inverts_the_projection_of_a_plane() -> None:
    turn = camera.rotation(_view(yaw=-0.3, pitch=0.1))
    align = camera.alignment(camera.TEMPLATE * 1.1 - 60.0, zoom=1.02, roll=0.01)
    size, depth = 56, -4.0
    u, v = camera.plane_map(turn, align, depth, size) @ (10.0, 20.0, 1.0)
    x, y = (u + 0.5) / canvas.PER_UNIT + canvas.LEFT, (v + 0.5) / canvas.PER_UNIT + canvas.TOP
    seen = align[:, :2] @ (turn @ (x, y, depth))[:2] + align[:, 2]
    np.testing.assert_allclose(seen, (2 * 10.5, 2 * 20.5), atol=1e-9)


def test_noise_has_the_stated_deviation() -> None:
    grey = np.full((112, 112, 3), 120, np.uint8)
    neutral = _view(cast_red=0, cast_blue=0, exposure=0, gamma=1, haze=0, saturation=1, noise=6)
    noisy = camera.sensor(grey, neutral, np.random.default_rng(0)).astype(float)
    still = camera.sensor(grey, replace(neutral, noise=0), np.random.default_rng(0)).astype(float)
    assert still.std() < 1e-9
    assert (noisy - still).std() == pytest.approx(6.0, rel=0.1)
    assert abs((noisy - still).mean()) < 0.5


def test_motion_blur_keeps_the_light() -> None:
    image = np.zeros((31, 31, 3), np.uint8)
    image[12:19, 12:19] = 200
    for angle in np.linspace(0, np.pi, 7).tolist():
        moved = camera.lens(image, _view(blur=0, motion=4.4, motion_angle=angle))
        assert moved.sum() == pytest.approx(image.sum(), rel=0.02)
        assert (moved != image).any()
