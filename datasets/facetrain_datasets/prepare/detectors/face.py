"""What a detector finds in a photo, and the Protocol it satisfies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np

#: Longer sides, in pixels, to which larger photos are scaled down: the second where the first shows
#: no face, which a face that fills the photo needs. None is ever enlarged, for the same reason.
LONGER_SIDES = (640, 256)


@dataclass(frozen=True, eq=False)
class Face:
    """One face of a photo, in its pixels.

    Attributes:
        box: float64 [4]: left, top, right, bottom.
        score: the detector's confidence, up to 1.
        points: float64 [5, 2]: eyes, nose, corners of the mouth, each left to right as seen.
    """

    box: np.ndarray
    score: float
    points: np.ndarray

    @property
    def width(self) -> float:
        return float(self.box[2] - self.box[0])

    @property
    def height(self) -> float:
        return float(self.box[3] - self.box[1])

    @property
    def center(self) -> tuple[float, float]:
        return float(self.box[0] + self.box[2]) / 2.0, float(self.box[1] + self.box[3]) / 2.0


class Detector(Protocol):
    """Finds faces with five landmarks; safe to call from several threads at once."""

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        """The faces of a uint8 RGB photo [H, W, 3], the most certain first.

        Args:
            image: upright, as its EXIF orientation says.
            name: the photo's path below the folder or list of photos, with forward slashes.
        """
        ...

    def describe(self) -> str:
        """One line for a report."""
        ...


def detect_scaled(image: np.ndarray, detect: Callable[[np.ndarray], list[Face]]) -> list[Face]:
    """Calls `detect` with the photo scaled down; the faces found, in pixels of the photo itself."""
    scales = sorted({min(1.0, side / max(image.shape[:2])) for side in LONGER_SIDES}, reverse=True)
    for scale in scales:
        rows, columns = (max(1, round(side * scale)) for side in image.shape[:2])
        small = image
        if scale < 1.0:
            small = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        faces = detect(small)
        if faces:
            back = np.array([image.shape[1] / columns, image.shape[0] / rows])
            return [Face(f.box * np.tile(back, 2), f.score, f.points * back) for f in faces]
    return []
