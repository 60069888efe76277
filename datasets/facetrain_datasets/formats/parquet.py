"""Parquet sets: a column `image` and a column `label` (class id) or `identity` (name).

An image is binary, or a struct of `bytes` and `path` as in Hugging Face's sets. Files written by
`ParquetWriter` hold each image as it is, so the index notes where its bytes lie and reading is one
`pread`. So it is with the files of others as long as they compress nothing. Where they do, the row
group of an image is decoded and a few of them are kept, which is slow in random order.
https://parquet.apache.org/docs/file-format/
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.identity_names import NAMES_FILE, write_identity_names
from facetrain_datasets.formats.index_builder import IndexBuilder
from facetrain_datasets.formats.shards import shard_files
from facetrain_datasets.image_index import ImageIndex, Progress, open_index, replaced_file
from facetrain_datasets.indexed_faces import IndexedFaces

_LENGTH = struct.Struct("<I")
_GROUPS_KEPT = 4
_GROUP_ROWS = 1000
_HARMLESS_BYTES = 1 << 28
_MAX_COMPRESSION = 20  # that of encoded images is hardly 1
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

    The index has their row in the group as offset, and ~group, a negative number, as length.
    """

    def __init__(self, index: ImageIndex, files: Sequence[Path], _: None = None) -> None:
        super().__init__(index, files)
        self._images = lru_cache(_GROUPS_KEPT)(lambda shard, group: _images(files[shard], group))

    def read(self, index: int) -> bytes:
        """The encoded image; as `IndexedFaces.read`."""
        length = self._lengths.item(index)
        if length >= 0:
            return super().read(index)
        return self._images(self._shards.item(index), ~length)[self._offsets.item(index)]


def _images(file: Path, group: int) -> list[bytes]:
    with _opened(file) as parquet:
        return _read_column(file, parquet, group, _image_column(file, parquet.schema_arrow))


def _build_index(path: Path, shards: Sequence[Path], progress: Progress | None) -> ImageIndex:
    builder = IndexBuilder(shards)
    in_place = True
    for number, shard in enumerate(shards):
        for row, (label, offset, length) in enumerate(_rows(shard)):
            builder.add(number, f"row {row}", label, offset, length)
            in_place = in_place and length >= 0
        if progress is not None:
            progress(number + 1, len(shards))
    return builder.finish("" if in_place else _SLOW_NOTE.format(path=path))


def _rows(file: Path) -> Iterator[tuple[int | str, int, int]]:
    """Label, offset and length of each row, the last two as the index has them."""
    with _opened(file) as parquet:
        image_column = _image_column(file, parquet.schema_arrow)
        label_column = _label_column(file, parquet.schema_arrow)
        for group in range(parquet.num_row_groups):
            labels = _read_column(file, parquet, group, label_column)
            images = _read_column(file, parquet, group, image_column)
            if None in labels or None in images:
                raise DatasetError(f"{file}: an empty cell in row group {group}; remove the row")
            lengths = [len(image) for image in images]
            offsets = _locate(*_raw_column(file, parquet, group, image_column), images)
            if offsets is None:
                offsets, lengths = list(range(len(images))), [~group] * len(images)
            yield from zip(labels, offsets, lengths, strict=True)


def _locate(start: int, chunk: bytes, images: list[bytes]) -> list[int] | None:
    """Where each image begins in the file, or None where one does not lie there as it is.

    Found by what they hold: each follows the one before, with the header of a page between them at
    most; one that occurred before may be kept once (dictionary encoding).

    Args:
        start: where the column chunk begins in the file.
        chunk: its bytes.
        images: its values.
    """
    cursor = 0
    known: dict[bytes, int] = {b"": start}
    for image in images:
        if image in known:
            continue
        value = _LENGTH.pack(len(image)) + image
        found = chunk.find(value, cursor)
        if found < 0:
            return None
        known[image] = start + found + _LENGTH.size
        cursor = found + len(value)
    return [known[image] for image in images]


def _raw_column(file: Path, parquet: Any, group: int, column: str) -> tuple[int, bytes]:
    """Where a column chunk begins, and its bytes as they lie in the file."""
    chunk = _chunk(parquet, group, column)
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    with file.open("rb") as raw:
        raw.seek(max(0, start))
        return start, raw.read(max(0, chunk.total_compressed_size))


def _chunk(parquet: Any, group: int, column: str) -> Any:
    """What the file says of a column in a row group."""
    chunks = parquet.metadata.row_group(group)
    paths = [chunks.column(number).path_in_schema for number in range(chunks.num_columns)]
    return chunks.column(paths.index(column))


def _read_column(file: Path, parquet: Any, group: int, column: str) -> list[Any]:
    _refuse_bomb(file, _chunk(parquet, group, column))
    # Arrow's threads do not survive the fork of a data loader's worker.
    table = parquet.read_row_group(group, columns=[column], use_threads=False)
    values: list[Any] = table.flatten().column(0).to_pylist()
    return values


def _refuse_bomb(file: Path, chunk: Any) -> None:
    """A row group is unpacked as a whole, and a few kilobytes can become gigabytes.

    Raises:
        DatasetError: this one would.
    """
    packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
    if unpacked > max(_HARMLESS_BYTES, _MAX_COMPRESSION * packed):
        raise DatasetError(
            f"{file}: a row group unpacks from {packed:,} bytes to {unpacked:,}, which no images "
            "do; the file is not to be trusted"
        )


def _image_column(file: Path, schema: Any) -> str:
    """The column `image`, or the only one that could be; `.bytes` of it where it is a struct."""
    found = {field.name: path for field in schema if (path := _image_path(field)) is not None}
    if "image" in found:
        return found["image"]
    if len(found) != 1:
        raise _no_column(file, schema, "image (binary, or a struct with bytes)")
    return next(iter(found.values()))


def _image_path(field: Any) -> str | None:
    from pyarrow import types

    def is_binary(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    if is_binary(field.type):
        return str(field.name)
    if types.is_struct(field.type):
        at = field.type.get_field_index("bytes")
        if at >= 0 and is_binary(field.type.field(at).type):
            return f"{field.name}.bytes"
    return None


def _label_column(file: Path, schema: Any) -> str:
    from pyarrow import types

    for name in ("label", "identity"):
        at = schema.get_field_index(name)
        if at >= 0:
            kind = schema.field(at).type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind):
                return name
    raise _no_column(file, schema, "label (whole number) or identity (name)")


def _no_column(file: Path, schema: Any, missing: str) -> DatasetError:
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    return DatasetError(f"{file}: no column {missing}; it has {found[:300] or 'none'}")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`; what goes wrong inside it as a `DatasetError`."""
    pyarrow = _pyarrow(file)
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as parquet:
            yield parquet
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DatasetError) or getattr(error, "errno", None):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{file}: damaged or no Parquet file ({reason}); restore the file"
        ) from None


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise DatasetError(
            f"{file}: Parquet needs pyarrow, which is not installed: "
            f"pip install 'facetrain[parquet]'"
        ) from None
    return pyarrow


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
        pyarrow = _pyarrow(file)
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
