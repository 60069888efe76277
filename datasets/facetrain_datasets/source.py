"""What a data set has to offer: encoded images, one class id each, a name for messages.

A format is one file in `formats/` with a class that satisfies `FaceSource`; nothing else in the
pipeline knows where the bytes come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class FaceSource(Protocol):
    """Encoded face images with their class ids, addressed by index `0 .. len - 1`."""

    @property
    def identities(self) -> Sequence[str]:
        """Name of each class; the position is the class id."""

    @property
    def labels(self) -> np.ndarray:
        """int64 [num_images], the class id of each image."""

    def __len__(self) -> int:
        """Number of images."""

    def read(self, index: int) -> bytes:
        """The encoded image (JPEG, PNG, ...), not yet decoded.

        Raises:
            OSError: the bytes cannot be read.
        """

    def describe(self, index: int) -> str:
        """Where the image lies, for messages: a file name, or a file and a key."""
