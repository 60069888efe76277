"""Images as a sequence of arrays, decoded when asked for: what evaluation reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from facetrain_datasets.decode import decode_image
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.file_bytes import read_image_file
from facetrain_datasets.source import FaceSource


@dataclass(frozen=True)
class DecodedImages(Sequence[np.ndarray]):
    """uint8 RGB [image_size, image_size, 3] each.

    Made by `of_paths` or `of_source`. Asking for an image that cannot be used raises a
    `DatasetError`: an evaluation without it would be another one.
    """

    read: Callable[[int], bytes]
    describe: Callable[[int], str]
    num_images: int
    image_size: int
    allow_grey: bool

    @classmethod
    def of_paths(
        cls, paths: Sequence[Path], *, image_size: int = 112, allow_grey: bool = False
    ) -> DecodedImages:
        """The images in these files."""
        return cls(
            lambda index: read_image_file(str(paths[index])),
            lambda index: str(paths[index]),
            len(paths),
            image_size,
            allow_grey,
        )

    @classmethod
    def of_source(
        cls, source: FaceSource, *, image_size: int = 112, allow_grey: bool = False
    ) -> DecodedImages:
        """All images of a source, in its order."""
        return cls(source.read, source.describe, len(source), image_size, allow_grey)

    def __len__(self) -> int:
        return self.num_images

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(self.num_images))]
        if not -self.num_images <= index < self.num_images:
            raise IndexError(f"image {index} of {self.num_images}")
        index %= self.num_images
        where = self.describe(index)
        try:
            data = self.read(index)
        except OSError as error:
            raise DatasetError(
                f"{where}: cannot be read ({error.strerror}); restore it or check its permissions"
            ) from error
        return decode_image(data, where, self.image_size, self.allow_grey)
