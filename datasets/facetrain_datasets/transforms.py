"""Random changes of a training image, each a pure function (image, rng) -> image.

Images are uint8 [H, W, 3] RGB; the input is never written to, and is returned as it is when the
draw says so. Each function draws whether and how much to change; `Compose` runs several by name.

    transform = Compose(("flip", "color", "shift_scale"))
    changed = transform(image, np.random.default_rng((seed, position)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError

_INTERPOLATIONS = (
    cv2.INTER_NEAREST,
    cv2.INTER_LINEAR,
    cv2.INTER_AREA,
    cv2.INTER_CUBIC,
    cv2.INTER_LANCZOS4,
)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirrors left and right, every second time."""
    return cv2.flip(image, 1) if rng.random() < 0.5 else image


def color(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Brightness, contrast and saturation, each by a factor in 0.7 .. 1.3.

    All three are affine in the pixel, so they are one 3x4 matrix: pixels are rounded once.
    """
    brightness, contrast, saturation = rng.uniform(0.7, 1.3, 3)
    grey = np.broadcast_to(_LUMA, (3, 3))
    mix = brightness * contrast * (saturation * np.eye(3) + (1 - saturation) * grey)
    mean_luma = float(np.dot(cv2.mean(image)[:3], _LUMA))
    offset = np.full((3, 1), brightness * (1 - contrast) * mean_luma)
    return cv2.transform(image, np.hstack([mix, offset]).astype(np.float32))


def shift_scale(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A small similarity about the centre: scale 0.93 .. 1.07, turn and shift of up to 4 %."""
    height, width = image.shape[:2]
    scale = rng.uniform(0.93, 1.07)
    angle_rad, shift_x, shift_y = rng.uniform(-0.04, 0.04, 3)
    centre = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(centre, np.degrees(angle_rad), scale)
    matrix[:, 2] += shift_x * width, shift_y * height
    return cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)


def blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Gaussian blur with a deviation of 0.5 .. 2 pixels, one time in five."""
    if rng.random() >= 0.2:
        return image
    return cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 2.0))


def cutout(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One time in three a box of 20 .. 45 % of each side takes one random colour."""
    if rng.random() >= 1 / 3:
        return image
    height, width = image.shape[:2]
    box_height, box_width = (rng.uniform(0.2, 0.45, 2) * (height, width)).astype(int)
    top = int(rng.integers(height - box_height + 1))
    left = int(rng.integers(width - box_width + 1))
    changed = image.copy()
    changed[top : top + box_height, left : left + box_width] = rng.integers(0, 256, 3)
    return changed


def grey(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Luminance in all three channels, one time in ten."""
    if rng.random() >= 0.1:
        return image
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def crop(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One time in five only a box of the face is left, of 20 .. 100 % of its area; else black.

    The box keeps its place, so the face stays aligned. M. Kim et al., AdaFace, 2022.
    """
    if rng.random() >= 0.2:
        return image
    height, width = image.shape[:2]
    area, log_ratio = rng.uniform((0.2, np.log(3 / 4)), (1.0, np.log(4 / 3)))
    ratio = np.exp(log_ratio)
    box_height = min(height, max(1, round(height * (area / ratio) ** 0.5)))
    box_width = min(width, max(1, round(width * (area * ratio) ** 0.5)))
    top = int(rng.integers(height - box_height + 1))
    left = int(rng.integers(width - box_width + 1))
    box = slice(top, top + box_height), slice(left, left + box_width)
    changed = np.zeros_like(image)
    changed[box] = image[box]
    return changed


def low_resolution(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One time in five it is made smaller, to 20 .. 100 % of each side, and large again.

    Both ways of resampling are drawn, since real images saw any. M. Kim et al., AdaFace, 2022.
    """
    if rng.random() >= 0.2:
        return image
    height, width = image.shape[:2]
    share = rng.uniform(0.2, 1.0)
    down, up = rng.integers(len(_INTERPOLATIONS), size=2)
    small = (max(1, round(width * share)), max(1, round(height * share)))
    reduced = cv2.resize(image, small, interpolation=_INTERPOLATIONS[down])
    return cv2.resize(reduced, (width, height), interpolation=_INTERPOLATIONS[up])


def jpeg(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One time in five it goes through JPEG at a quality of 20 .. 90."""
    if rng.random() >= 0.2:
        return image
    quality = int(rng.integers(20, 91))
    # The colours are exchanged on the way in and back on the way out, as OpenCV writes BGR.
    _, data = cv2.imencode(
        ".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), (cv2.IMWRITE_JPEG_QUALITY, quality)
    )
    return cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)


def mask(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One time in ten one colour covers the face from the nose down, as a worn mask does.

    The upper edge of a face aligned by five points lies between the eyes and the mouth.
    """
    if rng.random() >= 0.1:
        return image
    height, width = image.shape[:2]
    top, middle = height * rng.uniform((0.50, 0.46), (0.62, 0.58))
    corners = [(0, top), (width / 2, middle), (width, top), (width, height), (0, height)]
    changed = image.copy()
    color = tuple(int(value) for value in rng.integers(0, 256, 3))
    return cv2.fillPoly(changed, [np.round(corners).astype(np.int32)], color)


TRANSFORMS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "flip": flip,
    "color": color,
    "shift_scale": shift_scale,
    "blur": blur,
    "cutout": cutout,
    "grey": grey,
    "crop": crop,
    "low_resolution": low_resolution,
    "jpeg": jpeg,
    "mask": mask,
}


class Compose:
    """Runs transforms by name, in the order given, on one generator.

    Raises:
        DatasetError: a name that `TRANSFORMS` does not have.
    """

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in TRANSFORMS]
        if unknown:
            raise DatasetError(f"unknown transform {unknown[0]!r}; known: {', '.join(TRANSFORMS)}")
        self.names = tuple(names)

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for name in self.names:
            image = TRANSFORMS[name](image, rng)
        return image
