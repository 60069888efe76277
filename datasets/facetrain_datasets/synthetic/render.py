"""One photo of one person: paint, light, turn, photograph.

    image = render_face(identity_seed=7, sample_seed=0)      # uint8 [112, 112, 3] RGB

A person is a height field with painted skin. It is lit (Lambert and Blinn terms of one coloured
light over a coloured ambient, hollows darkened), turned by yaw and pitch, and aligned by its five
points as a detector would align a photo.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from facetrain_datasets.synthetic import camera, canvas, head, paint
from facetrain_datasets.synthetic.draws import draw
from facetrain_datasets.synthetic.person import Identity, View

_WRAP = 0.25  # light reaches a little past the terminator: skin scatters it
_PERSON, _PHOTO = 1, 2  # random streams
_BACK_DEPTH = -4.0
_BACK_LIGHT = 0.8
_SHADE_ONE = 100  # grey level that stands for full light; up to 2.55 fit


class FaceRenderer:
    """Photographs one person.

    Args:
        identity_seed: names the person.
        size: side of the photos in pixels.
    """

    def __init__(self, identity_seed: int, size: int = 112) -> None:
        rng = np.random.default_rng((_PERSON, identity_seed))
        self._seed = identity_seed
        self.size = size
        self.identity = draw(Identity, rng, extremes=True)
        self._skin = paint.paint_skin(self.identity, rng)

    def render(self, sample_seed: int) -> np.ndarray:
        """Photo `sample_seed`, uint8 [size, size, 3] RGB."""
        rng = np.random.default_rng((_PHOTO, self._seed, sample_seed))
        return self.photograph(draw(View, rng), rng)

    def photograph(self, view: View, rng: np.random.Generator) -> np.ndarray:
        """A photo under given conditions; `rng` draws backdrop, detector error and noise."""
        who, skin = self.identity, self._skin
        face = head.Expression.of(who, view)
        height = head.heights(who, face, wider=4.0)
        turn = camera.rotation(view)
        points = head.five_points(who, face, height) @ turn.T
        noisy = points[:, :2] + rng.normal(0.0, 0.3, (5, 2))
        align = camera.alignment(noisy, view.zoom, view.roll)

        painted = paint.paint_face(who, skin, face, view)
        dark = view.sunglasses > 0.98
        if dark or who.glasses > 0.0:
            paint.draw_glasses(painted, who, dark)
        shade = shading(height, turn, view)
        lit = cv2.multiply(painted, cv2.resize(shade, painted.shape[:2]), scale=1 / _SHADE_ONE)
        where = camera.face_map(turn, align, height, self.size)
        front = cv2.remap(lit, *where, cv2.INTER_LINEAR)
        front_mask = cv2.remap(paint.head_mask(who, face), *where, cv2.INTER_LINEAR)

        behind = canvas.blend(_backdrop(rng), skin.back_mask, skin.back)
        dim = _BACK_LIGHT / _SHADE_ONE * np.array(cv2.mean(shade)[:3])
        behind = cv2.transform(behind, np.diag(dim))
        behind = cv2.warpAffine(
            behind,
            camera.plane_map(turn, align, _BACK_DEPTH, self.size),
            (self.size, self.size),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        image = canvas.blend(behind, front_mask, front)
        if view.occlusion > 0.95:
            image = camera.occlude(image, rng)
        return camera.sensor(camera.lens(image, view), view, rng)


def shading(height: np.ndarray, turn: np.ndarray, view: View) -> np.ndarray:
    """Light that reaches the camera from each point, uint8 [FIELD, FIELD, 3] in 1/100."""
    nx, ny, nz = head.normals(height)
    cos_elevation = np.cos(view.key_elevation)
    towards_light = np.array(
        [
            cos_elevation * np.sin(view.key_azimuth),
            -np.sin(view.key_elevation),
            cos_elevation * np.cos(view.key_azimuth),
        ]
    )
    halfway = towards_light + np.array((0.0, 0.0, 1.0))
    (lx, hx), (ly, hy), (lz, hz) = np.column_stack(
        [turn.T @ towards_light, turn.T @ (halfway / np.linalg.norm(halfway))]
    ).tolist()
    lambert = (lx * nx + ly * ny + lz * nz + _WRAP) * (1.0 / (1.0 + _WRAP))
    shine = np.maximum(hx * nx + hy * ny + hz * nz, 0.0) ** 16
    around = cv2.blur(height, (9, 9), borderType=cv2.BORDER_REPLICATE)
    openness = 1.0 - np.clip(0.06 * (around - height), -0.08, 0.4)
    direct = view.key * (openness * np.maximum(lambert, 0.0) + view.shine * shine)
    ambient = view.fill * openness * (0.85 - 0.15 * ny)
    terms = cv2.convertScaleAbs(cv2.merge([direct, ambient]), alpha=_SHADE_ONE)
    warmth = np.array([(0.22, 0.0, -0.32)]).T
    return cv2.transform(terms, 1.0 + warmth * (view.key_warmth, view.fill_warmth))


def _backdrop(rng: np.random.Generator) -> np.ndarray:
    """Blurred patches of a muted colour, uint8 [PIXELS, PIXELS, 3]."""
    color = rng.uniform(20, 235) + rng.normal(0.0, 25.0, 3)
    patches = color + rng.normal(0.0, 28.0, (5, 5, 1)) + rng.normal(0.0, 10.0, (5, 5, 3))
    mode = cv2.INTER_LINEAR if rng.random() < 0.7 else cv2.INTER_NEAREST
    side = canvas.PIXELS
    return cv2.resize(np.clip(patches, 0, 255).astype(np.uint8), (side, side), interpolation=mode)


@lru_cache(maxsize=4)
def _renderer(identity_seed: int, size: int) -> FaceRenderer:
    return FaceRenderer(identity_seed, size)


def render_face(identity_seed: int, sample_seed: int, size: int = 112) -> np.ndarray:
    """Photo `sample_seed` of person `identity_seed`, uint8 [size, size, 3] RGB.

    The same seeds give the same photo. Calls for one person in a row share what stays the same.
    """
    return _renderer(identity_seed, size).render(sample_seed)
