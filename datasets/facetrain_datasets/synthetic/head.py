"""The shape of a head: outline, height above the face plane, and the five points.

A head seen from the front is a height field z(x, y): a rounded shell inside the outline plus one
Gaussian bump or hollow per feature. Turning the head and lighting it both follow from the field.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from facetrain_datasets.synthetic import canvas
from facetrain_datasets.synthetic.person import Identity, View


@dataclass(frozen=True)
class Expression:
    """The features as they stand in one photo, in face units."""

    smile: float
    jaw_drop: float
    brow_raise: float
    eye_open: float  # half height of the opening
    mouth_width: float
    corner_y: float
    line_y: float  # where the lips meet

    @staticmethod
    def of(identity: Identity, view: View) -> Expression:
        """The identity's features under the view's expression."""
        smile = max(0.0, view.smile)
        jaw_drop = 7.0 * max(0.0, view.mouth_open) ** 1.5
        return Expression(
            smile=smile,
            jaw_drop=jaw_drop,
            brow_raise=max(-0.8, view.brow_raise),
            eye_open=identity.eye_open * (0.05 if view.blink > 0.97 else view.eye_open)
            - 0.7 * smile * view.eye_open,
            mouth_width=identity.mouth_width + 2.2 * smile - 0.12 * jaw_drop,
            corner_y=identity.mouth_y + identity.mouth_corner - 2.4 * smile + 0.3 * jaw_drop,
            line_y=identity.mouth_y,
        )


def outline(identity: Identity, jaw_drop: float) -> tuple[np.ndarray, np.ndarray]:
    """Half width of the face at some heights: (y [n], half width [n]), from crown to chin."""
    who = identity
    chin_y = who.chin_y + 0.8 * jaw_drop
    jaw = who.cheek * who.jaw
    y = np.array([-76, -71, -62, -48, -30, -10, 8, 22, chin_y - 6, chin_y - 1.5, chin_y])
    half_width = np.array(
        [
            0.0,
            0.5 * who.forehead,
            0.84 * who.forehead,
            who.forehead,
            0.5 * (who.forehead + who.cheek),
            who.cheek,
            0.45 * who.cheek + 0.55 * jaw,
            0.94 * jaw,
            0.45 * jaw + 0.55 * who.chin_width,
            0.62 * who.chin_width,
            0.0,
        ]
    )
    rows = np.linspace(y[0], y[-1], 64)
    widths = np.interp(rows, y, half_width)
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    inner = np.convolve(widths, kernel, mode="same")
    return rows, np.concatenate([widths[:2], inner[2:-2], widths[-2:]])


def silhouette(rows: np.ndarray, half_width: np.ndarray) -> np.ndarray:
    """Closed polygon [2n, 2] of an outline."""
    right = canvas.points(half_width, rows)
    return np.concatenate([right, right[::-1] * (-1, 1)])


def heights(identity: Identity, face: Expression, wider: float) -> np.ndarray:
    """Height of the head above its plane, float32 [FIELD, FIELD], in face units.

    Args:
        identity: the person.
        face: the features in this photo.
        wider: what hair adds to the half width of the shell.
    """
    who = identity
    rows, half_width = outline(who, face.jaw_drop)
    width = np.maximum(np.interp(canvas.Y, rows, half_width), 27.0).astype(np.float32) + wider
    shell = who.depth * (1.0 - (canvas.X / width[:, None]) ** 2)
    shell -= (18.0 * ((canvas.Y + 8.0) / 62.0) ** 2)[:, None].astype(np.float32)
    lip_y = face.line_y
    low = face.jaw_drop
    alone: list[tuple[float, ...]] = [
        (0, 0.5 * (who.nose_y + who.eye_y), who.nose_bridge_width, 9.5, who.nose_bridge),
        (0, who.nose_y - 1.5, who.nose_tip_width, 5.0, who.nose_tip),
        (0, lip_y - who.upper_lip * 0.5, 0.6 * face.mouth_width, 2.4, 1.2 + 0.4 * who.upper_lip),
        (0, lip_y + who.lower_lip * 0.6 + low, 0.45 * face.mouth_width, 2.6, 0.5 * who.lower_lip),
        (0, lip_y + who.lower_lip + 4.0 + low, 8.0, 2.6, -2.2),
        (0, who.chin_y - 7.0 + 0.8 * low, 0.5 * who.chin_width + 2.0, 5.0, who.chin_bump),
        (0, who.eye_y - 1.0, 4.5, 3.5, -2.2),
    ]
    brow_y = who.eye_y - who.brow_gap + 1.0
    pairs = canvas.mirrored(
        [
            (who.eye_x - 1.5, who.eye_y, 8.0, 5.0, -who.eye_depth),
            (who.eye_x, who.eye_y, 4.6, 3.2, 0.55 * who.eye_depth + 0.8),
            (who.eye_x - 1.0, brow_y, 9.5, 3.2, who.brow_ridge),
            (who.nose_width - 1.6, who.nose_y + 1.2, 2.5, 2.7, 3.6),
            (0.68 * who.cheek, who.cheekbone_y, 8.0, 6.5, who.cheekbone + 2.0 * face.smile),
            (face.mouth_width + 2.0, face.corner_y, 3.0, 4.0, -1.6 - 1.4 * face.smile),
            (0.62 * who.cheek, 16.0, 8.0, 9.0, -0.5 * who.cheekbone),
        ]
    )
    return shell + canvas.bumps(np.concatenate([np.array(alone), pairs]))


def five_points(identity: Identity, face: Expression, height: np.ndarray) -> np.ndarray:
    """Eyes, nose tip and mouth corners [5, 3], as the five-point template orders them."""
    who = identity
    points = np.array(
        [
            (-who.eye_x, who.eye_y),
            (who.eye_x, who.eye_y),
            (0.0, who.nose_y),
            (-face.mouth_width, face.corner_y),
            (face.mouth_width, face.corner_y),
        ]
    )
    pixels = ((points - (canvas.LEFT, canvas.TOP)) * canvas.FIELD_PER_UNIT).astype(int)
    return np.column_stack([points, height[pixels[:, 1], pixels[:, 0]]])


def normals(height: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit normals of the height field, three float32 [FIELD, FIELD]."""
    per_unit = canvas.FIELD_PER_UNIT / 8.0  # Sobel sums to 8
    slope_x = cv2.Sobel(height, cv2.CV_32F, 1, 0, scale=per_unit)
    slope_y = cv2.Sobel(height, cv2.CV_32F, 0, 1, scale=per_unit)
    up = 1.0 / np.sqrt(1.0 + slope_x * slope_x + slope_y * slope_y)
    return -slope_x * up, -slope_y * up, up
