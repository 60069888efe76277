"""Faces that are files of their own."""

from __future__ import annotations

import os
from pathlib import Path


class FileFaces:
    """What sources of one file an image have in common; `_file` says which it is."""

    def _file(self, index: int) -> str:
        raise NotImplementedError

    def path(self, index: int) -> Path:
        """The file of image `index`."""
        return Path(self._file(index))

    def read(self, index: int) -> bytes:
        """The bytes of the file of image `index`; without Python's file objects, which take longer.

        Raises:
            OSError: it cannot be read.
        """
        descriptor = os.open(self._file(index), os.O_RDONLY)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def describe(self, index: int) -> str:
        """The file name of image `index`."""
        return self._file(index)
