"""Faces that are files of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from facetrain_datasets.file_bytes import read_image_file


class FileFaces(ABC):
    """What sources of one file an image have in common."""

    @abstractmethod
    def _file(self, index: int) -> str:
        """The file of image `index`."""

    def path(self, index: int) -> Path:
        """The file of image `index`."""
        return Path(self._file(index))

    def read(self, index: int) -> bytes:
        """The bytes of the file of image `index`.

        Raises:
            DatasetError: no file, or too large a one, to hold an image.
            OSError: it cannot be read.
        """
        return read_image_file(self._file(index))

    def describe(self, index: int) -> str:
        """The file name of image `index`."""
        return self._file(index)
