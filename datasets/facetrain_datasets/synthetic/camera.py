"""From a lit canvas to a photo: pose, alignment, objects in front, lens, sensor."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from facetrain_datasets.prepare.alignment import TEMPLATE, TEMPLATE_SIZE, similarity
from facetrain_datasets.synthetic import canvas
from facetrain_datasets.synthetic.person import View

_NUM_STEPS = 5
_NOISE_TILE = 320


def rotation(view: View) -> np.ndarray:
    """Turns face coordinates into camera coordinates [3, 3]: yaw, then pitch, then roll."""
    cy, sy = np.cos(view.yaw), np.sin(view.yaw)
    cp, sp = np.cos(view.pitch), np.sin(view.pitch)
    cr, sr = np.cos(view.roll), np.sin(view.roll)
    yaw = np.array([(cy, 0, sy), (0, 1, 0), (-sy, 0, cy)])
    pitch = np.array([(1, 0, 0), (0, cp, sp), (0, -sp, cp)])
    roll = np.array([(cr, -sr, 0), (sr, cr, 0), (0, 0, 1)])
    return roll @ pitch @ yaw


def alignment(points: np.ndarray, zoom: float, roll: float) -> np.ndarray:
    """Similarity [2, 3] that takes the projected five points [5, 2] to the template.

    `zoom` and `roll` are the errors a detector leaves, applied about the centre of the crop.
    """
    matrix = similarity(points, TEMPLATE)
    a, b = matrix[:, 0] @ (1, 1j), matrix[:, 2] @ (1, 1j)  # in the complex plane: a z + b
    middle = 0.5 * TEMPLATE_SIZE * (1 + 1j)
    error = zoom * np.exp(1j * roll)
    a, b = error * a, error * (b - middle) + middle
    return np.array([(a.real, -a.imag, b.real), (a.imag, a.real, b.imag)])


def face_map(
    turn: np.ndarray, align: np.ndarray, height: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each pixel of the photo, the canvas pixel it shows: two float32 [size, size].

    A pixel sees the point whose projection it is: `(x, y)` with
    `A (x, y) + c z(x, y) = pixel`. With slopes below 1 across the line of sight the damped fixed
    point below converges; it runs at half resolution because the map is smooth.
    """
    half = (size + 1) // 2
    grid = (np.arange(half, dtype=np.float32) + 0.5) * (TEMPLATE_SIZE / half)
    forward = align[:, :2] @ turn[:2]
    inverse = np.linalg.inv(forward[:, :2])
    offset = inverse @ align[:, 2] + (canvas.LEFT, canvas.TOP)
    drift = inverse @ forward[:, 2]
    # In pixels of the height field from here on.
    (ixx, ixy), (iyx, iyy) = (inverse * canvas.FIELD_PER_UNIT).astype(np.float32)
    offset_x, offset_y = (offset * canvas.FIELD_PER_UNIT + 0.5).astype(np.float32)
    shift_x, shift_y = (drift * canvas.FIELD_PER_UNIT).astype(np.float32)
    flat_x = ixx * grid + (ixy * grid - offset_x)[:, None]
    flat_y = iyx * grid + (iyy * grid - offset_y)[:, None]
    depth: np.ndarray = np.full((half, half), height.mean(), np.float32)
    for _ in range(_NUM_STEPS):
        x, y = flat_x - shift_x * depth, flat_y - shift_y * depth
        seen = cv2.remap(height, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        depth = cv2.addWeighted(depth, 0.4, seen, 0.6, 0.0)
    zoom = canvas.PIXELS / canvas.FIELD
    to_canvas = [
        zoom * (flat - shift * depth) + np.float32(0.5 * (zoom - 1.0))
        for flat, shift in ((flat_x, shift_x), (flat_y, shift_y))
    ]
    return cv2.resize(to_canvas[0], (size, size)), cv2.resize(to_canvas[1], (size, size))


def plane_map(turn: np.ndarray, align: np.ndarray, depth: float, size: int) -> np.ndarray:
    """Affine [2, 3] from photo pixels to canvas pixels for a plane at one depth."""
    scale = TEMPLATE_SIZE / size
    forward = align[:, :2] @ turn[:2]
    inverse = np.linalg.inv(forward[:, :2])
    offset = inverse @ (0.5 * scale - align[:, 2] - forward[:, 2] * depth)
    shift = (offset - (canvas.LEFT, canvas.TOP)) * canvas.PER_UNIT - 0.5
    return np.column_stack([inverse * (scale * canvas.PER_UNIT), shift])


def lens(image: np.ndarray, view: View) -> np.ndarray:
    """Defocus and motion blur."""
    if view.blur > 0.3:
        image = cv2.GaussianBlur(image, (7, 7), view.blur)
    if view.motion > 2.0:
        length = int(view.motion) | 1
        kernel = np.zeros((length, length), np.float32)
        along = 0.5 * length * np.array([np.cos(view.motion_angle), np.sin(view.motion_angle)])
        ends = np.round(0.5 * (length - 1) + np.stack([-along, along])).astype(int).tolist()
        cv2.line(kernel, ends[0], ends[1], 1.0)
        image = cv2.filter2D(image, -1, kernel / kernel.sum())
    return image


def sensor(image: np.ndarray, view: View, rng: np.random.Generator) -> np.ndarray:
    """Exposure, white balance, saturation, contrast and noise."""
    levels = np.linspace(0.0, 1.0, 256)[:, None]
    balance = np.array([1.0 + view.cast_red, 1.0, 1.0 + view.cast_blue]) * 2.0**view.exposure
    curve = np.clip(levels * balance, 0.0, None)
    curve = (curve / (1.0 + 0.25 * curve) * 1.25) ** view.gamma  # soft shoulder
    curve = view.haze + (1.0 - 1.4 * abs(view.haze)) * curve
    table = np.clip(255.0 * curve, 0, 255).astype(np.uint8)
    image = cv2.LUT(image, table[None])
    luma = np.broadcast_to(np.array([0.299, 0.587, 0.114]), (3, 3))
    mix = view.saturation * np.eye(3) + (1.0 - view.saturation) * luma
    image = cv2.transform(image, mix)
    side = image.shape[0]
    tile = _noise_tile(max(_NOISE_TILE, 2 * side))
    top, left = rng.integers(0, tile.shape[0] - side, 2).tolist()
    noise = tile[top : top + side, left : left + side]
    return cv2.addWeighted(image, 1.0, noise, view.noise / 32.0, -4.0 * view.noise)


@lru_cache(maxsize=2)
def _noise_tile(side: int) -> np.ndarray:
    """Fixed normal noise, uint8, mean 128 and deviation 32; photos take windows of it."""
    noise = np.random.default_rng(0).standard_normal((side, side, 3))
    return np.clip(128.0 + 32.0 * noise, 0, 255).astype(np.uint8)


def occlude(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A smooth object of one colour (a hand, a cup, a scarf) reaches in from below or a side."""
    size = image.shape[0]
    angle = rng.uniform(-0.2, np.pi + 0.2)  # from right through below to left
    reach = rng.uniform(0.30, 0.52) * size
    center = 0.5 * size + reach * np.array([np.cos(angle), np.sin(angle)])
    turns = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    swell, phase = rng.uniform(0.0, 0.18, 3), rng.uniform(0, 2 * np.pi, 3)
    waves = np.cos(np.outer(turns, (1, 2, 3)) + phase) @ swell
    radius = size * rng.uniform(0.14, 0.24) * (1.0 + waves)
    points = center + radius[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    shape = np.round(points * 16).astype(np.int32)
    color = rng.uniform(30, 220, 3).tolist()
    covered = image.copy()
    cv2.fillPoly(covered, [shape], color, cv2.LINE_AA, 4)
    return covered
