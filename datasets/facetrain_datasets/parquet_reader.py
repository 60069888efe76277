"""What is asked of pyarrow, and the process that asks it: `parquet_process` starts and feeds it.

A damaged file can make pyarrow end the process that reads it (an exception that its C++ lets
through, memory written where it should not be). So none but this one, which nobody misses, does.

A request is a line of JSON, `["index", file]` or `["images", file, group]`. The answer is a line of
JSON for each row group, with `sizes` of the byte strings that follow it, and a last line: `end`,
and either `error`, what is wrong with the file, or `errno`, if there is something.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from facetrain_datasets.errors import DatasetError

_LENGTH = struct.Struct("<I")
_HARMLESS_BYTES = 1 << 28
_MAX_COMPRESSION = 20  # that of encoded images is hardly 1
_BYTES_FREE = 2 << 30  # to what a row group may take, for pools of memory and pictures kept once
_COPIES = 6  # of a row group: packed, unpacked, as a column that grows, as Python's bytes

Answer = tuple[dict[str, Any], list[bytes]]


def serve() -> None:
    """Answers what comes on standard input until that ends, as it does with who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pyarrow.parquet  # noqa: F401

    _say({"end": True})  # ready
    for line in sys.stdin.buffer:
        kind, file, *group = json.loads(line)
        end: dict[str, Any] = {"end": True}
        try:
            path = Path(file)
            answers = index_answers(path) if kind == "index" else images_answer(path, *group)
            for header, contents in answers:
                _say({**header, "sizes": [len(content) for content in contents]}, contents)
        except DatasetError as error:
            end["error"] = str(error)
        except OSError as error:
            end["errno"] = error.errno
        _say(end)


def _say(header: dict[str, Any], contents: list[bytes] | None = None) -> None:
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n")
    sys.stdout.buffer.writelines(contents or [])
    sys.stdout.buffer.flush()


def index_answers(file: Path) -> Iterator[Answer]:
    """Of each row group `labels`, and as int64 the offsets and lengths that the index is to have.

    Raises:
        DatasetError: the file cannot be used; its name is not in the message.
        OSError: it cannot be read.
    """
    with _opened(file) as parquet:
        image_column = _image_column(parquet.schema_arrow)
        label_column = _label_column(parquet.schema_arrow)
        for group in range(parquet.num_row_groups):
            labels = _read_column(parquet, group, label_column)
            images = _read_column(parquet, group, image_column)
            if None in labels or None in images:
                raise DatasetError(f"an empty cell in row group {group}; remove the row")
            if len(labels) != len(images):
                raise DatasetError(
                    f"damaged (row group {group} has {len(labels)} labels, {len(images)} images); "
                    "restore the file"
                )
            lengths = [len(image) for image in images]
            offsets = _locate(*_raw_column(file, parquet, group, image_column), images)
            if offsets is None:
                offsets, lengths = list(range(len(images))), [~group] * len(images)
            yield {"labels": labels}, [array("q", n).tobytes() for n in (offsets, lengths)]


def images_answer(file: Path, group: int) -> Iterator[Answer]:
    """The images of a row group; raises as `index_answers` does."""
    with _opened(file) as parquet:
        if not group < parquet.num_row_groups:
            raise DatasetError(f"no row group {group} in it; remove its index")
        yield {}, _read_column(parquet, group, _image_column(parquet.schema_arrow))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`; what goes wrong inside it as a `DatasetError`."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as parquet:
            yield parquet
    except (ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, DatasetError) or getattr(error, "errno", None):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"damaged or no Parquet file ({reason}); restore the file") from None


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


def _read_column(parquet: Any, group: int, column: str) -> list[Any]:
    _limit_memory(_chunk(parquet, group, column))
    table = parquet.read_row_group(group, columns=[column], use_threads=False)
    values: list[Any] = table.flatten().column(0).to_pylist()
    return values


def _limit_memory(chunk: Any) -> None:
    """A row group is unpacked as a whole, and a few kilobytes can become gigabytes.

    Raises:
        DatasetError: this one would, by what it says. One that says less than it takes is stopped
            by the limit that this sets.
    """
    packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
    if unpacked > max(_HARMLESS_BYTES, _MAX_COMPRESSION * packed):
        raise DatasetError(
            f"a row group unpacks from {packed:,} bytes to {unpacked:,}, which no images do; "
            "the file is not to be trusted"
        )
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        taken = pages * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = taken + _BYTES_FREE + _COPIES * max(0, packed, unpacked)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (min(limit, sys.maxsize), hard))


def _image_column(schema: Any) -> str:
    """The column `image`, or the only one that could be; `.bytes` of it where it is a struct."""
    found = {field.name: path for field in schema if (path := _image_path(field)) is not None}
    if "image" in found:
        return found["image"]
    if len(found) != 1:
        raise _no_column(schema, "image (binary, or a struct with bytes)")
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


def _label_column(schema: Any) -> str:
    from pyarrow import types

    for name in ("label", "identity"):
        at = schema.get_field_index(name)
        if at >= 0:
            kind = schema.field(at).type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind):
                return name
    raise _no_column(schema, "label (whole number) or identity (name)")


def _no_column(schema: Any, missing: str) -> DatasetError:
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    return DatasetError(f"no column {missing}; it has {found[:300] or 'none'}")
