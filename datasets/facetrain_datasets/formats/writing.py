"""What every writer of a format has in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from facetrain_datasets.image_header import read_image_header

_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "bmp": ".bmp", "pnm": ".ppm"}


class FaceWriter(Protocol):
    """Writes a set to a folder, in pieces: one that was killed goes on with the piece it was at.

    Made with the folder, the name of each class, and int64 [num_images], the class id of each
    image in the order in which they will come.
    """

    def write(self, first: int, images: Iterable[bytes], position: int) -> int:
        """Writes a piece, once more if need be.

        Args:
            first: number of its first image; pieces come in order.
            images: encoded images.
            position: what this returned for the piece before, 0 for the first.

        Returns:
            What the writer has to know for the next piece.
        """

    def finish(self, position: int) -> None:
        """Writes what belongs to the set as a whole, after the last piece."""


def image_suffix(image: bytes) -> str:
    """The suffix of a file of this image; an unknown kind is called .jpg, lest it get lost."""
    header = read_image_header(image)
    return _SUFFIXES[header.kind] if header else ".jpg"
