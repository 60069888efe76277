"""Five-point alignment: the similarity that brings five landmarks to fixed places of a square face.

With points as complex numbers a similarity without reflection is z -> a z + b, so the least-squares
one is a regression: a = sum conj(p) q / sum |p|^2 over centred points, which is S. Umeyama's
solution ("Least-squares estimation of transformation parameters between two point patterns", TPAMI
1991) in the plane.

    face = align(photo, points)  # uint8 [112, 112, 3]
"""

from __future__ import annotations

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError

#: Where left eye, right eye, nose and the corners of the mouth (left and right as seen in the
#: picture) lie in an aligned face of 112x112; float64 [5, 2], (x, y) in pixels.
TEMPLATE = np.array(
    [
        (38.2946, 51.6963),
        (73.5318, 51.5014),
        (56.0252, 71.7366),
        (41.5493, 92.3655),
        (70.7299, 92.2041),
    ]
)
TEMPLATE_SIZE = 112


def similarity(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The rotation, uniform scale and shift that best brings `points` to `target`.

    Args:
        points: [P, 2], (x, y).
        target: [P, 2].

    Returns:
        float64 [2, 3], the matrix M with M @ (x, y, 1) closest to the target in least squares.

    Raises:
        DatasetError: points that are not finite, that fall together, or that only a reflection
            would fit.
    """
    source = np.asarray(points, dtype=np.float64) @ (1.0, 1.0j)
    wanted = np.asarray(target, dtype=np.float64) @ (1.0, 1.0j)
    centred = source - source.mean()
    spread = np.vdot(centred, centred).real
    if not np.isfinite(spread):
        raise DatasetError("landmarks are not finite; detect them again")
    factor = np.vdot(centred, wanted - wanted.mean()) / spread if spread > 0.0 else 0.0
    if factor == 0.0:
        raise DatasetError("landmarks fall together or are mirrored; detect them again")
    shift = wanted.mean() - factor * source.mean()
    return np.array(
        [[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]]
    )


def template(size: int) -> np.ndarray:
    """`TEMPLATE` for a face of `size` pixels, float64 [5, 2]."""
    return TEMPLATE * (size / TEMPLATE_SIZE)


def align(image: np.ndarray, points: np.ndarray, size: int = TEMPLATE_SIZE) -> np.ndarray:
    """The face at `points`, upright, scaled and cut out; black where the picture ends.

    A face of more than twice the size is first halved by averaging, as often as needed: a bilinear
    warp reads four pixels and would skip the others.

    Args:
        image: uint8 [H, W, 3].
        points: [5, 2] in pixels of the image, in the order of `TEMPLATE`.
        size: height and width of the result.

    Returns:
        uint8 [size, size, 3].

    Raises:
        DatasetError: see `similarity`.
    """
    matrix = similarity(points, template(size))
    while np.hypot(matrix[0, 0], matrix[1, 0]) < 0.5 and min(image.shape[:2]) > 1:
        height, width = image.shape[0] // 2, image.shape[1] // 2
        image = cv2.resize(
            image[: 2 * height, : 2 * width], (width, height), None, 0, 0, cv2.INTER_AREA
        )
        # A pixel's centre x of the small image lies at 2x + 0.5 of the large one.
        matrix = matrix @ np.array([(2.0, 0.0, 0.5), (0.0, 2.0, 0.5), (0.0, 0.0, 1.0)])
    return cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR)
