"""The canvas a face is painted on: face units to pixels, and the few strokes painting needs."""

from __future__ import annotations

import cv2
import numpy as np

# Left, top and side of the square the canvas covers, in face units (see person.py).
LEFT, TOP, SIDE = -68.0, -80.0, 136.0
# Colours are painted at PIXELS; heights and light, which are smooth, live on half of that.
PIXELS = 144
FIELD = PIXELS // 2
PER_UNIT = PIXELS / SIDE
FIELD_PER_UNIT = FIELD / SIDE

X = ((np.arange(FIELD) + 0.5) / FIELD_PER_UNIT + LEFT).astype(np.float32)
Y = ((np.arange(FIELD) + 0.5) / FIELD_PER_UNIT + TOP).astype(np.float32)

_SUBPIXEL_BITS = 4
_SUBPIXELS = PER_UNIT * 2**_SUBPIXEL_BITS
_ORIGIN = np.array((LEFT, TOP)) * _SUBPIXELS + 2.0 ** (_SUBPIXEL_BITS - 1) - 0.5

Color = tuple[float, ...]


def points(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[n, 2] of two [n]; a little faster than `np.stack`, which counts here."""
    both = np.empty((len(x), 2))
    both[:, 0], both[:, 1] = x, y
    return both


def fixed_point(places: np.ndarray) -> np.ndarray:
    """Face units [n, 2] to the int32 fixed-point pixels of OpenCV's drawing functions."""
    return np.floor(places * _SUBPIXELS - _ORIGIN).astype(np.int32)


def fill(canvas: np.ndarray, polygon: np.ndarray, color: Color) -> None:
    """Fills a polygon, [n, 2] in face units."""
    cv2.fillPoly(canvas, [fixed_point(polygon)], color, cv2.LINE_AA, _SUBPIXEL_BITS)


def stroke(canvas: np.ndarray, line: np.ndarray, color: Color, thickness: int = 1) -> None:
    """Draws an open line through points [n, 2] in face units; thickness in canvas pixels."""
    cv2.polylines(canvas, [fixed_point(line)], False, color, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)


def ellipse(
    canvas: np.ndarray,
    center: tuple[float, float],
    radii: tuple[float, float],
    color: Color,
    thickness: int = cv2.FILLED,
) -> None:
    """Draws an upright ellipse; centre and radii in face units."""
    middle = (
        int(center[0] * _SUBPIXELS - _ORIGIN[0]),
        int(center[1] * _SUBPIXELS - _ORIGIN[1]),
    )
    axes = (int(radii[0] * _SUBPIXELS), int(radii[1] * _SUBPIXELS))
    cv2.ellipse(canvas, middle, axes, 0, 0, 360, color, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)


def empty_mask() -> np.ndarray:
    """uint8 zeros [PIXELS, PIXELS]."""
    return np.zeros((PIXELS, PIXELS), np.uint8)


def rows(top: float, bottom: float) -> slice:
    """The canvas rows between two heights in face units."""
    return slice(int((top - TOP) * PER_UNIT), int((bottom - TOP) * PER_UNIT) + 1)


def soften(mask: np.ndarray) -> np.ndarray:
    """A small blur: the soft edge of hair."""
    return cv2.GaussianBlur(mask, (5, 5), 0.9)


def blend(below: np.ndarray, mask: np.ndarray, above: np.ndarray) -> np.ndarray:
    """`above` (a colour or an image) over the image `below` where the uint8 `mask` says so."""
    weight = cv2.merge([mask, mask, mask])
    if above.ndim == 1:
        over = cv2.merge([cv2.convertScaleAbs(mask, alpha=share / 255) for share in above.tolist()])
    else:
        over = cv2.multiply(above, weight, scale=1 / 255)
    return cv2.add(cv2.multiply(below, 255 - weight, scale=1 / 255), over)


def bumps(table: np.ndarray) -> np.ndarray:
    """Sum of axis-parallel Gaussians, float32 [FIELD, FIELD]; one product of two matrices.

    Args:
        table: [k, 5], each row centre x, centre y, deviation x, deviation y, height.
    """
    x, y, dx, dy, height = table.astype(np.float32).T[:, :, None]
    columns = np.exp(-0.5 * ((X - x) / dx) ** 2)
    rows = height * np.exp(-0.5 * ((Y - y) / dy) ** 2)
    return rows.T @ columns


def mirrored(table: list[tuple[float, ...]]) -> np.ndarray:
    """Rows of `bumps` and the same at -x."""
    right = np.array(table)
    return np.concatenate([right, right * (-1, 1, 1, 1, 1)])
