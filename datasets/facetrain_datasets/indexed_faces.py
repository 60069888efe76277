"""Faces that are byte ranges of files: RecordIO, tar and most Parquet sets, read by one `pread`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.file_bytes import MAX_IMAGE_BYTES
from facetrain_datasets.image_index import ImageIndex

_MAX_OPEN_FILES = 256


class _OpenFile:
    """A descriptor that is closed when the last thread that reads from it lets go."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class IndexedFaces:
    """A `FaceSource` over an index; safe to share with threads, forked and spawned workers.

    Files are opened when first read. `pread` moves no offset, so a descriptor that a forked worker
    inherits disturbs nobody.

    Args:
        index: where the images lie.
        files: the data files, by shard.
        assemble: makes an image of a range whose length the index gives as negative.
    """

    def __init__(
        self,
        index: ImageIndex,
        files: Sequence[Path],
        assemble: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.identities = index.identities
        self.labels = index.labels
        self.note = index.note
        self._index = index
        self._files = files
        self._assemble = assemble
        self._offsets, self._lengths = index.offsets, index.lengths
        # One number for all, without memory, where there is one file.
        self._shards = index.shards if index.shards.size else np.broadcast_to(0, len(index))
        self._open = lru_cache(_MAX_OPEN_FILES)(lambda shard: _OpenFile(files[shard]))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._index, self._files, self._assemble)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> bytes:
        """The encoded image.

        Raises:
            DatasetError: the file ends before the image does, or it is too large to be one.
            OSError: the file cannot be read.
        """
        length = self._lengths.item(index)
        if abs(length) > MAX_IMAGE_BYTES:
            raise DatasetError(f"{self.describe(index)}: {abs(length):,} bytes, not an image")
        file = self._open(self._shards.item(index))
        try:
            data = os.pread(file.descriptor, abs(length), self._offsets.item(index))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.describe(index)) from None
        if len(data) != abs(length):
            raise DatasetError(
                f"{self.describe(index)}: the file ends before the image does; "
                f"it was cut while in use, restore it"
            )
        if length >= 0:
            return data
        assert self._assemble is not None
        return self._assemble(data)

    def describe(self, index: int) -> str:
        """The file, and what the image is called in it."""
        return f"{self._files[self._shards.item(index)]}: {self._index.names[index]}"
