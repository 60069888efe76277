"""Parquet sets: a column `image` and a column `label` (class id) or `identity` (name).

An image is binary, or a struct of `bytes` and `path` as in Hugging Face's sets. Files written by
`ParquetWriter` hold each image as it is, so the index notes where its bytes lie and reading is one
`pread`. So it is with the files of others as long as they compress nothing. Where they do, the row
group of an image is decoded and a few of them are kept, which is slow in random order.
pyarrow never reads in this process, since a damaged file may crash it: see `parquet_process`.
https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.identity_names import NAMES_FILE, write_identity_names
from facetrain_datasets.formats.index_builder import IndexBuilder
from facetrain_datasets.formats.shards import shard_files
from facetrain_datasets.image_index import ImageIndex, Progress, open_index, replaced_file
from facetrain_datasets.indexed_faces import IndexedFaces
from facetrain_datasets.parquet_process import read_images, read_index, require_pyarrow

_GROUPS_KEPT = 4
_GROUP_ROWS = 1000
_SLOW_NOTE = (
    "compressed Parquet: every read decodes a row group, slow in random order; "
    "convert it once: facetrain data convert {path} OUT --to parquet"
)


def open_parquet(path: Path, progress: Progress | None = None) -> IndexedFaces:
    """The images of Parquet files, in their order.

    Args:
        path: a folder of `.parquet` files, one of them, or a pattern such as `a-{00..12}.parquet`.
        progress: called with (files read, files in all) while the index is built.

    Raises:
        DatasetError: no such file, one that cannot be used, or pyarrow is absent.
    """
    shards = shard_files(path, ".parquet")
    names = shards[0].with_name(NAMES_FILE)
    files = [*shards, names] if names.exists() else shards
    index = open_index(path, "parquet", files, lambda: _build_index(path, shards, progress))
    return (RowGroupFaces if index.note else IndexedFaces)(index, shards)


class RowGroupFaces(IndexedFaces):
    """Images of which some can only be had by decoding their row group.

    The index has their row in the group as offset, and ~group, a negative number, as length. The
    other process unpacks here too: an index may come with its data from elsewhere, so that none
    here has read them before. It costs some 15 us an image, a tenth of what its pixels cost.
    """

    def __init__(self, index: ImageIndex, files: Sequence[Path], _: None = None) -> None:
        super().__init__(index, files)
        self._images = lru_cache(_GROUPS_KEPT)(
            lambda shard, group: read_images(files[shard], group)
        )

    def read(self, index: int) -> bytes:
        """The encoded image; as `IndexedFaces.read`."""
        length = self._lengths.item(index)
        if length >= 0:
            return super().read(index)
        images, row = self._images(self._shards.item(index), ~length), self._offsets.item(index)
        if not 0 <= row < len(images):
            raise DatasetError(
                f"{self.describe(index)}: not in row group {~length}; remove the index"
            )
        return images[row]


def _build_index(path: Path, shards: Sequence[Path], progress: Progress | None) -> ImageIndex:
    builder = IndexBuilder(shards)
    in_place = True
    for number, shard in enumerate(shards):
        row = 0
        for labels, offsets, lengths in read_index(shard):
            in_place = in_place and bool((lengths >= 0).all())
            for place in zip(labels, offsets.tolist(), lengths.tolist(), strict=True):
                builder.add(number, f"row {row}", *place)
                row += 1
        if progress is not None:
            progress(number + 1, len(shards))
    return builder.finish("" if in_place else _SLOW_NOTE.format(path=path))


class ParquetWriter:
    """Writes `000000.parquet ...` whose images lie as they are; a `FaceWriter`.

    Class ids go into the files, the names of the classes beside them.
    """

    def __init__(self, folder: Path, identities: Sequence[str], labels: np.ndarray) -> None:
        self._folder = folder
        self._identities = identities
        self._labels = labels

    def write(self, first: int, images: Iterable[bytes], position: int) -> int:
        """A file; `position` is its number. See `FaceWriter`."""
        file = self._folder / f"{position:06d}.parquet"
        require_pyarrow(file)
        import pyarrow
        from pyarrow.parquet import write_table

        column = pyarrow.array(images, pyarrow.binary())
        labels = self._labels[first : first + len(column)]
        with replaced_file(file) as raw:
            write_table(
                pyarrow.table({"image": column, "label": labels}),
                raw,
                row_group_size=_GROUP_ROWS,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
        return position + 1

    def finish(self, position: int) -> None:
        """The names of the classes."""
        write_identity_names(self._folder, self._identities)
