"""The colours of a face: skin, eyes, brows, mouth, hair, painted flat on the canvas.

What does not move with the expression is painted once per identity (`Skin`); the rest per photo.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from facetrain_datasets.synthetic.canvas import (
    PIXELS,
    blend,
    ellipse,
    empty_mask,
    fill,
    points,
    rows,
    soften,
    stroke,
)
from facetrain_datasets.synthetic.head import Expression, outline, silhouette
from facetrain_datasets.synthetic.person import Identity, View

_SKIN = np.array([(238, 204, 184), (206, 158, 128), (122, 84, 64)], np.float64)
_HAIR = np.array([(176, 140, 92), (84, 58, 40), (28, 24, 24)], np.float64)
_IRIS = np.array([(46, 28, 18), (92, 62, 34), (84, 104, 112)], np.float64)
_SIDES = (-1.0, 1.0)
_OCTAGON = np.array([(np.cos(a), np.sin(a)) for a in np.arange(8) * np.pi / 4])
_T7, _T9, _T11, _T15 = (np.linspace(-1.0, 1.0, n) for n in (7, 9, 11, 15))


@dataclass(frozen=True)
class Skin:
    """What is painted once per identity.

    Attributes:
        color: RGB of the plain skin.
        hair: RGB of the hair.
        base: uint8 [PIXELS, PIXELS, 3], skin with its texture and marks.
        hair_mask: uint8 [PIXELS, PIXELS], hair on the head, in front.
        hair_texture: uint8 [PIXELS, PIXELS, 3], colour of the hair.
        beard_mask: uint8 [PIXELS, PIXELS], where hair grows on the lower face.
        back: uint8 [PIXELS, PIXELS, 3], neck, ears and long hair, behind the face.
        back_mask: uint8 [PIXELS, PIXELS], where they are.
    """

    color: np.ndarray
    hair: np.ndarray
    base: np.ndarray
    hair_mask: np.ndarray
    hair_texture: np.ndarray
    beard_mask: np.ndarray
    back: np.ndarray
    back_mask: np.ndarray


def paint_skin(who: Identity, rng: np.random.Generator) -> Skin:
    """Paints what stays: skin texture, marks, wrinkles, hair."""
    color = _ramp(_SKIN, who.melanin) * (1.0, 1.0 - 0.05 * who.redness, 1.0 - 0.08 * who.redness)
    hair = _ramp(_HAIR, who.hair_darkness) * (1.0, 1.0 - 0.2 * who.hair_red, 1 - 0.4 * who.hair_red)
    base = _textured(color, rng, fine=5.0, coarse=13.0)
    _marks(base, who, color, rng)
    base = cv2.GaussianBlur(base, (3, 3), 0.6)
    streaks = cv2.blur(rng.standard_normal((PIXELS, PIXELS)).astype(np.float32), (1, 13))
    shades = 1.0 + 0.9 * cv2.GaussianBlur(streaks, (0, 0), 0.7)
    hair_texture = np.clip(hair * shades[:, :, None], 0, 255).astype(np.uint8)
    back, back_mask = _back(who, color, hair_texture)
    front_mask = _hair_mask(who, rng)
    return Skin(color, hair, base, front_mask, hair_texture, _beard_mask(who), back, back_mask)


def _ramp(colors: np.ndarray, share: float) -> np.ndarray:
    at = np.linspace(0.0, 1.0, len(colors))
    return np.array([np.interp(share, at, channel) for channel in colors.T])


def _textured(
    color: np.ndarray, rng: np.random.Generator, fine: float, coarse: float
) -> np.ndarray:
    noise = fine * cv2.GaussianBlur(
        rng.standard_normal((PIXELS, PIXELS)).astype(np.float32), (0, 0), 0.9
    )
    blotches = rng.standard_normal((9, 9)).astype(np.float32)
    noise += coarse * cv2.resize(blotches, (PIXELS, PIXELS), interpolation=cv2.INTER_CUBIC)
    return np.clip(color + noise[:, :, None], 0, 255).astype(np.uint8)


def _marks(base: np.ndarray, who: Identity, color: np.ndarray, rng: np.random.Generator) -> None:
    dark = tuple((0.55 * color).tolist())
    if who.freckles > 0.3:
        for x, y in rng.normal((0, -6), (20, 7), (int(90 * who.freckles), 2)).tolist():
            fill(base, 0.9 * _OCTAGON + (x, y), tuple((0.78 * color).tolist()))
    for x, y, size in rng.uniform((-30, -44, 0.8), (30, 34, 1.9), (int(who.num_moles), 3)).tolist():
        fill(base, size * _OCTAGON + (x, y), dark)
    if who.wrinkles > 0:
        shade = tuple(((1.0 - 0.32 * who.wrinkles) * color).tolist())
        t = np.linspace(-1, 1, 9)
        for y in (-37.0, -42.0, -47.0):
            wave = y - 1.6 * np.cos(1.6 * t) + rng.normal(0, 0.4, 9)
            stroke(base, points(18 * t, wave), shade)
        for side in _SIDES:
            corner = np.array([side * (who.eye_x + who.eye_width + 1.5), who.eye_y])
            for angle in (-0.5, 0.0, 0.5):
                tip = corner + 5.5 * np.array([side * np.cos(angle), np.sin(angle)])
                stroke(base, np.stack([corner, tip]), shade)


def _hair_mask(who: Identity, rng: np.random.Generator) -> np.ndarray:
    """Everything above the hairline, the temples, and a fringe where there is one."""
    mask = empty_mask()
    t = np.linspace(-1.0, 1.0, 41)
    edge = who.forehead + who.hair_volume + 6.0
    line = who.hairline_y + who.hairline_arch * (2.0 * np.abs(t) - 1.0)
    part = np.abs(t * edge - who.parting) / 20.0
    if who.fringe > 0:
        line = line + 22.0 * who.fringe * np.clip(part, 0.0, 1.0)
    line = line + rng.normal(0.0, 0.9, 41)
    sides = np.interp(np.abs(t), (0.74, 0.9, 1.0), (0.0, 14.0 + 16.0 * who.temple, 40.0))
    lower = points(t * edge, np.minimum(line + sides, 6.0))
    fill(mask, np.concatenate([lower, [(edge, -80.0), (-edge, -80.0)]]), (255,))
    return soften(mask)


def _beard_mask(who: Identity) -> np.ndarray:
    mask = empty_mask()
    stubble = int(110 * max(0.0, who.stubble))
    beard = int(230 * np.sqrt(max(0.0, who.beard)))
    y, half_width = outline(who, 0.0)
    lower = y > 2.0
    jaw = silhouette(y[lower], 1.02 * half_width[lower])
    fill(mask, jaw, (max(stubble, beard),))
    cheek = (0.58 * who.cheek, 0.5 * who.mouth_y + 3.0)
    for side in _SIDES:
        ellipse(mask, (side * 0.42 * who.cheek, cheek[1] - 4.0), (0.34 * who.cheek, 13.0), (0,))
    ellipse(mask, (0.0, who.mouth_y), (0.8 * who.mouth_width, 5.5), (0,))
    moustache = int(235 * np.sqrt(max(0.0, who.moustache)))
    width, lip = 0.95 * who.mouth_width, who.mouth_y - who.upper_lip
    half = np.array(
        [
            (0, lip - 6.5),
            (0.5 * width, lip - 6.0),
            (width, lip + 1.0),
            (0.9 * width, lip + 3.0),
            (0.4 * width, lip - 0.5),
            (0, lip - 1.0),
        ]
    )
    fill(mask, np.concatenate([half, half[::-1] * (-1, 1)]), (max(stubble, beard, moustache),))
    return cv2.GaussianBlur(mask, (9, 9), 2.0)


def _back(
    who: Identity, color: np.ndarray, hair_texture: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Long hair, neck and ears, and where they are."""
    mask = empty_mask()
    back = hair_texture.copy()
    if who.hair_length > -30.0:
        y, half_width = outline(who, 0.0)
        at = np.linspace(-80.0, who.hair_length, 24)
        width = np.maximum(np.interp(at, y, half_width), 0.9 * who.cheek) + who.hair_volume + 3.0
        left = who.hair_length - at
        width *= np.interp(left, (0.0, 6.0, 18.0), (0.72, 0.93, 1.0))
        fill(mask, silhouette(at, width + 0.8 * np.sin(0.5 * at)), (255,))
    half = 0.58 * who.cheek
    neck = np.array([(-half, 10.0), (half, 10.0), (1.1 * half, 57.0), (-1.1 * half, 57.0)])
    ears = who.ears > 0.3 and who.hair_length < 0.0
    fill(mask, neck, (255,))
    fill(back, neck, tuple((0.52 * color).tolist()))
    for side in _SIDES if ears else ():
        x = side * (who.cheek - 0.5)
        ellipse(mask, (x, -9.0), (3.0 + 3.0 * who.ears, 10.0), (255,))
        ellipse(back, (x, -9.0), (4.0 + 3.0 * who.ears, 11.0), tuple((0.85 * color).tolist()))
        ellipse(back, (x + side, -9.0), (2.4, 6.5), tuple((0.6 * color).tolist()))
    return back, soften(mask)


def paint_face(who: Identity, skin: Skin, face: Expression, view: View) -> np.ndarray:
    """The face of one photo, uint8 RGB [PIXELS, PIXELS, 3], evenly lit."""
    painted = _creases(who, skin, face)
    beard = cv2.convertScaleAbs(skin.beard_mask, alpha=min(1.0, view.shave))
    hairy = cv2.max(beard, _brow_mask(who, face))
    part = rows(who.eye_y - 32.0, 56.0)
    painted[part] = blend(painted[part], hairy[part], 0.8 * skin.hair)
    _nostrils(painted, who, skin)
    _mouth(painted, who, skin, face)
    _eyes(painted, who, skin, face, view)
    return blend(painted, skin.hair_mask, skin.hair_texture)


def _creases(who: Identity, skin: Skin, face: Expression) -> np.ndarray:
    """The skin with soft folds from nose to mouth and bags under the eyes."""
    mask = empty_mask()
    fold = (int(20 + 75 * who.folds + 70 * face.smile),)
    bag = (int(110 * who.bags),)
    t = 0.5 * (_T7 + 1.0)
    bulge = 2.0 * np.sin(np.pi * t)
    angle = np.pi * (0.15 + 0.7 * t)
    start, stop = who.nose_width + 2.0, face.mouth_width + 3.5
    fold_x = start + (stop - start) * t**0.8 + bulge
    fold_y = who.nose_y - 1.0 + (face.corner_y - who.nose_y) * t
    bag_x = who.eye_x + (who.eye_width + 0.5) * np.cos(angle)
    bag_y = who.eye_y + 2.0 + 4.5 * np.sin(angle)
    for side in _SIDES:
        stroke(mask, points(side * fold_x, fold_y), fold, 2)
        stroke(mask, points(side * bag_x, bag_y), bag, 2)
    part = rows(who.eye_y - 2.0, face.corner_y + 8.0)
    painted = skin.base.copy()
    painted[part] = blend(painted[part], soften(mask[part]), 0.6 * skin.color)
    return painted


def _nostrils(painted: np.ndarray, who: Identity, skin: Skin) -> None:
    for side in _SIDES:
        wing = np.array([(1.0, -2.5), (1.35, 0.5), (1.1, 3.0), (0.75, 4.0)])
        edge = wing * (side * who.nose_width, 1.0) + (0.0, who.nose_y)
        stroke(painted, edge, tuple((0.68 * skin.color).tolist()))
        hole = (side * 0.52 * who.nose_width, who.nose_y + 4.0)
        ellipse(painted, hole, (1.3 * who.nostril, 0.75 * who.nostril), (48, 26, 22))
    x, y = who.nose_width, who.nose_y
    base = np.array([(-0.5 * x, y + 5.2), (0.0, y + 5.8), (0.5 * x, y + 5.2)])
    stroke(painted, base, tuple((0.74 * skin.color).tolist()))


def _mouth(painted: np.ndarray, who: Identity, skin: Skin, face: Expression) -> None:
    lip = skin.color * (0.93, 0.66 - 0.1 * who.lip_tint, 0.66 - 0.06 * who.lip_tint)
    t = _T15
    x = face.mouth_width * t
    bend = face.corner_y + (face.line_y - face.corner_y) * (1.0 - t**2)
    round_ = 1.0 - np.abs(t) ** 2.2
    bow = who.cupid_bow * (np.exp(-((t / 0.16) ** 2)))
    top = bend - who.upper_lip * round_ + bow * round_
    upper_edge = bend - 0.1 * face.jaw_drop * round_
    lower_edge = bend + face.jaw_drop * (1.0 - t**2)
    bottom = lower_edge + (who.lower_lip - 0.35 * face.smile) * (1.0 - np.abs(t) ** 2.6)

    def band(above: np.ndarray, below: np.ndarray) -> np.ndarray:
        upper, lower = points(x, above), points(x, below)
        return np.concatenate([upper, lower[::-1]])

    fill(painted, band(top, upper_edge), tuple((0.86 * lip).tolist()))
    fill(painted, band(lower_edge, bottom), tuple(lip.tolist()))
    if face.jaw_drop > 0.6:
        fill(painted, band(upper_edge, lower_edge), (58, 22, 24))
        teeth = np.minimum(upper_edge + 0.62 * face.jaw_drop * (1 - t**2), lower_edge)
        fill(painted, band(upper_edge, teeth)[2:-2], (222, 214, 202))
    else:
        stroke(painted, points(x, bend), tuple((0.45 * lip).tolist()))


def _eyes(painted: np.ndarray, who: Identity, skin: Skin, face: Expression, view: View) -> None:
    part = rows(who.eye_y - 13.0, who.eye_y + 13.0)
    eyes = np.full_like(painted, 222)
    mask = empty_mask()
    t = _T11
    iris = _ramp(_IRIS, who.iris)
    lids = []
    for side in _SIDES:
        across = who.eye_width * t
        upper = -face.eye_open * (1 - t**2) ** 0.75
        lower = 0.55 * face.eye_open * (1 - t**2)
        outer_up = -who.eye_tilt * across  # along the outward direction, positive tilt lifts
        rim = points(who.eye_x + across, who.eye_y + upper + outer_up)
        floor = points(who.eye_x + across, who.eye_y + lower + outer_up)
        rim, floor = rim * (side, 1.0), floor * (side, 1.0)
        lids.append((rim, floor))
        fill(mask, np.concatenate([rim, floor[::-1]]), (255,))
        look = (
            side * who.eye_x + view.gaze_x * 0.5 * who.eye_width,
            who.eye_y - 0.2 * face.eye_open + view.gaze_y * face.eye_open,
        )
        ellipse(eyes, look, (3.7, 3.7), tuple((0.55 * iris).tolist()))
        ellipse(eyes, look, (3.2, 3.2), tuple(iris.tolist()))
        ellipse(eyes, look, (1.5, 1.5), (12, 10, 10))
        ellipse(eyes, (look[0] - 1.0, look[1] - 1.1), (0.7, 0.7), (250, 250, 250))
    painted[part] = blend(painted[part], mask[part], eyes[part])
    lash = tuple((0.25 * skin.color).tolist())
    for rim, floor in lids:
        if who.lid_crease > 0.6:
            crease = rim - (0.0, who.lid_crease)
            stroke(painted, crease, tuple((0.7 * skin.color).tolist()))
        stroke(painted, floor, tuple((0.7 * skin.color).tolist()))
        stroke(painted, rim, lash)


def _brow_mask(who: Identity, face: Expression) -> np.ndarray:
    mask = empty_mask()
    t = _T9
    ridge = who.eye_y - who.brow_gap - face.brow_raise
    y = ridge - who.brow_arch * (1 - (t - 0.25) ** 2) - who.brow_tilt * who.brow_length * t
    half = who.brow_thickness * (1.0 - who.brow_taper * np.clip(t, 0.0, 1.0) ** 1.5)
    half[0] *= 0.7
    for side in _SIDES:
        x = side * (who.eye_x - 0.5 + who.brow_length * t)
        upper, lower = points(x, y - half), points(x, y + half)
        fill(mask, np.concatenate([upper, lower[::-1]]), (255 * who.brow_darkness,))
    part = rows(ridge - 14.0, ridge + 10.0)
    mask[part] = soften(mask[part])
    return mask


def head_mask(who: Identity, face: Expression) -> np.ndarray:
    """Where the head is: the face and the hair on it, uint8 [PIXELS, PIXELS]."""
    mask = empty_mask()
    y, half_width = outline(who, face.jaw_drop)
    above = np.interp(y, (-34.0, -24.0), (who.hair_volume, 0.0))
    fill(mask, silhouette(y - 0.4 * above, half_width + above), (255,))
    return mask


def draw_glasses(painted: np.ndarray, who: Identity, dark: bool) -> None:
    """Glasses in the plane of the eyes, in place; `dark` ones hide them."""
    shape = who.glasses_shape
    frame = (40 + 60 * shape, 34 + 40 * shape, 34)
    radii = (10.5 + 1.5 * shape, 6.0 + 4.0 * shape)
    thickness = 2 if shape < 0.6 else 1
    for side in _SIDES:
        center = (side * (who.eye_x + 0.5), who.eye_y + 1.5)
        if dark:
            ellipse(painted, center, (radii[0] + 1.0, radii[1] + 1.5), (24, 22, 26))
        ellipse(painted, center, radii, frame, thickness)
        hinge = center[0] + side * radii[0]
        arm = np.array([(hinge, center[1] - 2.0), (side * 50.0, center[1] - 6.0)])
        stroke(painted, arm, frame, thickness)
    inner = who.eye_x + 0.5 - radii[0]
    bridge = np.array([(-inner, who.eye_y + 0.5), (0, who.eye_y - 0.8), (inner, who.eye_y + 0.5)])
    stroke(painted, bridge, frame, thickness)
