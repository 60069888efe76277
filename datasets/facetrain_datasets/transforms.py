"""Random changes of a training image, by name; whether and how each changes it is drawn.

Images are uint8 [H, W, 3] RGB and are never written to. A change is a pure function (image, rng) ->
image; a `Transform` says with which probability it is made. An `Augmentation` runs several, and
depends on (seed, position in the stream) alone.

    augmentation = Augmentation(("flip", "color", "shift_scale"), seed=0)
    (changes,) = augmentation.choose([position])
    image = augmentation.apply(image, position, changes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.sample_random import SampleRandom

_INTERPOLATIONS = (
    cv2.INTER_NEAREST,
    cv2.INTER_LINEAR,
    cv2.INTER_AREA,
    cv2.INTER_CUBIC,
    cv2.INTER_LANCZOS4,
)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


@dataclass(frozen=True)
class Transform:
    """A change, and how often it is made.

    Attributes:
        probability: in [0, 1].
        change: from (image, rng) to the changed image.
        draws: whether `change` draws at all. Else its generator may be None: making one takes time.
    """

    probability: float
    change: Callable[..., np.ndarray]
    draws: bool = True


def flip(image: np.ndarray, rng: object = None) -> np.ndarray:
    """Mirrors left and right."""
    return cv2.flip(image, 1)


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
    """Gaussian blur with a deviation of 0.5 .. 2 pixels."""
    return cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 2.0))


def cutout(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A box of 20 .. 45 % of each side takes one random colour."""
    height, width = image.shape[:2]
    box_height, box_width = (rng.uniform(0.2, 0.45, 2) * (height, width)).astype(int)
    top = int(rng.integers(height - box_height + 1))
    left = int(rng.integers(width - box_width + 1))
    changed = image.copy()
    changed[top : top + box_height, left : left + box_width] = rng.integers(0, 256, 3)
    return changed


def grey(image: np.ndarray, rng: object = None) -> np.ndarray:
    """Luminance in all three channels."""
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def crop(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Only a box of the face is left, of 20 .. 100 % of its area; the rest becomes black.

    The box keeps its place, so the face stays aligned. M. Kim et al., AdaFace, 2022.
    """
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
    """It is made smaller, to 20 .. 100 % of each side, and large again.

    Both ways of resampling are drawn, since real images saw any. M. Kim et al., AdaFace, 2022.
    """
    height, width = image.shape[:2]
    share = rng.uniform(0.2, 1.0)
    down, up = rng.integers(len(_INTERPOLATIONS), size=2)
    small = (max(1, round(width * share)), max(1, round(height * share)))
    reduced = cv2.resize(image, small, interpolation=_INTERPOLATIONS[down])
    return cv2.resize(reduced, (width, height), interpolation=_INTERPOLATIONS[up])


def jpeg(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """It goes through JPEG at a quality of 20 .. 90."""
    quality = int(rng.integers(20, 91))
    # The colours are exchanged on the way in and back on the way out, as OpenCV writes BGR.
    _, data = cv2.imencode(
        ".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), (cv2.IMWRITE_JPEG_QUALITY, quality)
    )
    changed = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
    assert changed is not None
    return changed


def mask(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One colour covers the face from the nose down, as a worn mask does.

    The upper edge of a face aligned by five points lies between the eyes and the mouth.
    """
    height, width = image.shape[:2]
    top, middle = height * rng.uniform((0.50, 0.46), (0.62, 0.58))
    corners = [(0, top), (width / 2, middle), (width, top), (width, height), (0, height)]
    changed = image.copy()
    color = tuple(int(value) for value in rng.integers(0, 256, 3))
    return cv2.fillPoly(changed, [np.round(corners).astype(np.int32)], color)


TRANSFORMS: dict[str, Transform] = {
    "flip": Transform(1 / 2, flip, draws=False),
    "color": Transform(1.0, color),
    "shift_scale": Transform(1.0, shift_scale),
    "blur": Transform(1 / 5, blur),
    "cutout": Transform(1 / 3, cutout),
    "grey": Transform(1 / 10, grey, draws=False),
    "crop": Transform(1 / 5, crop),
    "low_resolution": Transform(1 / 5, low_resolution),
    "jpeg": Transform(1 / 5, jpeg),
    "mask": Transform(1 / 10, mask),
}


class Augmentation:
    """Transforms, in the order given, each drawn from (seed, position) alone.

    Args:
        transforms: names in `TRANSFORMS`, or transforms of one's own.
        seed: non-negative.

    Raises:
        DatasetError: a name that `TRANSFORMS` does not have, or a negative seed.
    """

    def __init__(self, transforms: Sequence[str | Transform], seed: int) -> None:
        unknown = [t for t in transforms if isinstance(t, str) and t not in TRANSFORMS]
        if unknown:
            raise DatasetError(f"unknown transform {unknown[0]!r}; known: {', '.join(TRANSFORMS)}")
        self._transforms = [TRANSFORMS[t] if isinstance(t, str) else t for t in transforms]
        self._probabilities = np.array([t.probability for t in self._transforms])
        self._random = SampleRandom(seed)

    def choose(self, positions: Sequence[int]) -> list[list[Transform]]:
        """The transforms that are made at each position: a whole batch is drawn at once."""
        chosen: list[list[Transform]] = [[] for _ in positions]
        draws = self._random.uniform(np.asarray(positions, np.int64), len(self._transforms))
        rows, columns = np.nonzero(draws < self._probabilities)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            chosen[row].append(self._transforms[column])
        return chosen

    def apply(self, image: np.ndarray, position: int, chosen: Sequence[Transform]) -> np.ndarray:
        """The image after the transforms that were chosen for its position."""
        rng = None
        for transform in chosen:
            if rng is None and transform.draws:
                rng = self._random.at(position)
            image = transform.change(image, rng)
        return image
