"""What a detector finds in a photo, and the Protocol it satisfies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


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
