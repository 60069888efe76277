"""The similarity against Umeyama's SVD and a numeric search, the warp against its definition."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.alignment import TEMPLATE, align, similarity, template


def umeyama(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Equations 34-43 of the paper, for any dimension."""
    mean_p, mean_q = points.mean(0), target.mean(0)
    p, q = points - mean_p, target - mean_q
    u, singular, vt = np.linalg.svd(q.T @ p / len(p))
    sign = np.ones(p.shape[1])
    if np.linalg.det(u) * np.linalg.det(vt) < 0.0:
        sign[-1] = -1.0
    rotation = u @ np.diag(sign) @ vt
    scale = (singular * sign).sum() / (p**2).sum(1).mean()
    return np.c_[scale * rotation, mean_q - scale * rotation @ mean_p]


def residual(matrix: np.ndarray, points: np.ndarray, target: np.ndarray) -> float:
    return float(((points @ matrix[:, :2].T + matrix[:, 2] - target) ** 2).sum())


@pytest.mark.parametrize("seed", range(20))
def test_similarity_equals_umeyamas_also_where_a_reflection_fits_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(5, 2)) * rng.uniform(1, 100) + rng.uniform(-500, 500, 2)
    mirrored = points * (-1.0, 1.0) if seed % 2 else points
    target = mirrored * rng.uniform(0.1, 3) + rng.normal(size=(5, 2))
    matrix = similarity(points, target)
    np.testing.assert_allclose(matrix, umeyama(points, target), rtol=1e-8, atol=1e-8)
    assert np.linalg.det(matrix[:, :2]) > 0.0


def test_no_similarity_nearby_fits_better() -> None:
    rng = np.random.default_rng(0)
    points = TEMPLATE @ np.array([(1.4, 0.7), (-0.7, 1.4)]) + 90 + rng.normal(size=(5, 2)) * 5
    best = similarity(points, TEMPLATE)
    for _ in range(500):
        a, b, x, y = rng.normal(size=4) * (0.01, 0.01, 1.0, 1.0)
        other = best + np.array([(a, -b, x), (b, a, y)])
        assert residual(other, points, TEMPLATE) > residual(best, points, TEMPLATE)


def test_known_similarity_is_found_again() -> None:
    angle, scale = 0.4, 2.5
    rotation = scale * np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    target = TEMPLATE @ rotation.T + (30.0, -7.0)
    np.testing.assert_allclose(similarity(TEMPLATE, target), np.c_[rotation, (30.0, -7.0)])


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (np.full((5, 2), 3.0), "fall together"),
        (np.full((5, 2), np.nan), "not finite"),
        (TEMPLATE * np.inf, "not finite"),
    ],
)
def test_unusable_landmarks_are_refused(points: np.ndarray, said: str) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(DatasetError, match=said):
        similarity(points, TEMPLATE)


def smooth_picture(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    channels = (np.sin(x / 17) + np.cos(y / 23), np.sin((x + y) / 29), np.cos(x / 31))
    return np.stack([127 + 60 * c for c in channels], axis=2).astype(np.uint8)


def slow_bilinear(image: np.ndarray, matrix: np.ndarray, size: int) -> np.ndarray:
    """Each pixel by the four around where it comes from, one after another."""
    inverse = np.linalg.inv(np.r_[matrix, [(0.0, 0.0, 1.0)]])
    out = np.zeros((size, size, 3))
    padded = np.pad(image.astype(float), ((1, 1), (1, 1), (0, 0)))
    for v in range(size):
        for u in range(size):
            x, y, _ = inverse @ (u, v, 1.0)
            left, top = int(np.floor(x)), int(np.floor(y))
            if not (-1 <= left < image.shape[1] and -1 <= top < image.shape[0]):
                continue
            dx, dy = x - left, y - top
            box = padded[top + 1 : top + 3, left + 1 : left + 3]
            weights = np.outer((1 - dy, dy), (1 - dx, dx))
            out[v, u] = (weights[:, :, None] * box).sum((0, 1))
    return out


def test_warp_is_bilinear() -> None:
    image = smooth_picture(150, 130)
    points = template(112) * 0.9 + (8.0, 14.0)
    points += np.random.default_rng(1).normal(size=(5, 2))
    expected = slow_bilinear(image, similarity(points, template(32)), 32)
    # Scale 0.32: this face is halved first, which a smooth picture does not show inside.
    halved = align(image, points, 32)
    assert np.abs(halved[2:-2, 2:-2] - expected[2:-2, 2:-2]).max() < 6.0
    expected = slow_bilinear(image, similarity(points, template(64)), 64)
    # OpenCV rounds the position to 1/32 pixel.
    assert np.abs(align(image, points, 64) - expected).max() < 3.0


def test_landmarks_land_on_the_template() -> None:
    """Dots drawn at the landmarks of a large, turned face come out at the template's places."""
    points = TEMPLATE @ np.array([(5.0, 1.5), (-1.5, 5.0)]) + (400.0, 100.0)
    image = np.zeros((900, 1000, 3), np.uint8)
    for x, y in points:
        cv2.circle(image, (round(x), round(y)), 12, (255, 255, 255), -1)
    face = align(image, points).astype(float).mean(2)
    for x, y in TEMPLATE:
        top, left = round(y) - 6, round(x) - 6
        box = face[top : top + 13, left : left + 13]
        rows, columns = np.mgrid[top : top + 13, left : left + 13]
        centre = np.array([(columns * box).sum(), (rows * box).sum()]) / box.sum()
        assert np.abs(centre - (x, y)).max() < 0.2


def test_fine_pattern_of_a_large_face_becomes_grey() -> None:
    """Of a chequerboard four times too fine a plain bilinear warp would keep black and white."""
    board = (np.indices((896, 896)).sum(0) % 2 * 255).astype(np.uint8)
    face = align(np.repeat(board[:, :, None], 3, axis=2), template(896))
    assert np.abs(face[4:-4, 4:-4].astype(float) - 127.5).max() < 3.0


def test_outside_the_picture_is_black() -> None:
    image = np.full((112, 112, 3), 200, np.uint8)
    face = align(image, TEMPLATE - (50.0, 0.0))
    assert (face[:, :45] == 0).all()
    assert (face[:, 55:] == 200).all()
