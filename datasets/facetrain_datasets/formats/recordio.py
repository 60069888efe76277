"""RecordIO, the container of MXNet's `.rec` files: records one after another, found by one scan.

A record is u32 magic, u32 (part << 29 | length), the payload, zeros up to a multiple of 4 bytes.
A payload that holds the magic at a multiple of 4 is cut there and the magic left out; the parts are
numbered first (1), middle (2), last (3), a whole one is 0. A payload is a header (u32 number of
labels, f32 label, u64 id, u64 id2), that many f32 labels, and the encoded image. Little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_index import Progress

MAGIC = 0xCED7230A
RECORD = np.dtype(
    [
        ("start", "<i8"),  # where the record begins
        ("offset", "<i8"),  # where its image begins
        ("length", "<i8"),  # bytes of the image; negative: all of a record in parts, from offset
        ("label", "<f4"),  # the label, the first where there are several
        ("id", "<u8"),
        ("num_labels", "<u4"),
    ]
)

_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAX_LENGTH = (1 << 29) - 1
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_FIRST_LABEL = struct.Struct("<f")
_HEAD = struct.Struct("<IIIfQQf")  # a part, a header and the label that may follow
_ROW = struct.Struct("<qqqfQI")
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_BUFFER_BYTES = 1 << 20


def scan_records(path: Path, progress: Progress | None = None) -> np.ndarray:
    """Every record of a file, in its order.

    Args:
        path: the `.rec` file.
        progress: called with (bytes scanned, bytes in all) now and then.

    Returns:
        `RECORD` [num_records].

    Raises:
        DatasetError: the file is cut or damaged; the message names the byte.
        OSError: it cannot be read.
    """
    rows = bytearray()
    size = path.stat().st_size
    start = reported = 0
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        while start < size:
            file.seek(start)
            row, end = _scan_record(file, path, start, size)
            rows += row
            start = end + -end % 4
            if progress is not None and start - reported > _BUFFER_BYTES:
                reported = start
                progress(start, size)
    return np.frombuffer(rows, RECORD)


def _scan_record(file: BinaryIO, path: Path, start: int, size: int) -> tuple[bytes, int]:
    """One record as a row, and where it ends."""
    head = file.read(_HEAD.size).ljust(_HEAD.size, b"\0")
    magic, word, num_labels, label, number, _, first_label = _HEAD.unpack(head)
    part, length = word >> 29, word & _MAX_LENGTH
    end = start + _PART.size + length
    skipped = _HEADER.size + 4 * num_labels
    if magic == MAGIC and part == _FIRST:
        return _scan_parts(file, path, start, size)
    _check_part(path, start, start, size, magic, part == _WHOLE, end)
    if length < skipped:
        raise _damaged(path, start, f"a record of {length} bytes, header of {skipped}")
    image = start + _PART.size + skipped
    label = first_label if num_labels else label
    return _ROW.pack(start, image, end - image, label, number, num_labels), end


def _scan_parts(file: BinaryIO, path: Path, start: int, size: int) -> tuple[bytes, int]:
    """One record that was cut into parts, as a row, and where it ends."""
    position, part, expected = start, _FIRST, {_FIRST}
    while True:
        file.seek(position)
        magic, word = _PART.unpack(file.read(_PART.size).ljust(_PART.size, b"\0"))
        part, length = word >> 29, word & _MAX_LENGTH
        end = position + _PART.size + length
        aligned = part == _LAST or length % 4 == 0
        in_order = part in expected and aligned
        _check_part(path, start, position, size, magic, in_order, end)
        if part == _LAST:
            break
        position, expected = end, {_MIDDLE, _LAST}
    file.seek(start)
    payload = join_parts(file.read(end - start))
    if len(payload) < _HEADER.size:
        raise _damaged(path, start, f"a record of {len(payload)} bytes")
    num_labels, label, number, _ = _HEADER.unpack_from(payload)
    if len(payload) < _HEADER.size + 4 * num_labels:
        raise _damaged(path, start, f"a record of {len(payload)} bytes, {num_labels} labels")
    if num_labels:
        (label,) = _FIRST_LABEL.unpack_from(payload, _HEADER.size)
    return _ROW.pack(start, start, start - end, label, number, num_labels), end


def _check_part(
    path: Path, record: int, start: int, size: int, magic: int, in_order: bool, end: int
) -> None:
    """Checks the part at byte `start` of the record at byte `record`, which ends at `end`."""
    if start + _PART.size > size or (magic == MAGIC and end > size):
        raise DatasetError(
            f"{path}: cut: the record at byte {record} does not end within the file's {size} "
            f"bytes; copy the file again, or drop that record: truncate -s {record} {path.name}"
        )
    if magic != MAGIC:
        raise _damaged(path, start, f"0x{magic:08x}, no magic number,")
    if not in_order:
        raise _damaged(path, start, "a part of a record out of order")


def _damaged(path: Path, start: int, found: str) -> DatasetError:
    return DatasetError(
        f"{path}: damaged, or no RecordIO file: {found} at byte {start}; restore the file"
    )


def join_parts(record: bytes) -> bytes:
    """The payload of a record that was cut into parts, with the magic back between them."""
    pieces = []
    position = 0
    while position < len(record):
        _, word = _PART.unpack_from(record, position)
        begin = position + _PART.size
        position = begin + (word & _MAX_LENGTH)
        pieces.append(record[begin:position])
    return _MAGIC_BYTES.join(pieces)


def image_of_parts(record: bytes) -> bytes:
    """The image in a record that was cut into parts.

    Raises:
        DatasetError: it is no such record, as where the file was changed after its index was made.
    """
    try:
        payload = join_parts(record)
        (num_labels,) = struct.unpack_from("<I", payload)
    except struct.error:
        raise DatasetError("no record of RecordIO; the file was changed in use") from None
    return payload[_HEADER.size + 4 * num_labels :]


def pack_record(number: int, label: float | Sequence[float], image: bytes) -> bytes:
    """A record with this id, one label or several, and the image.

    Raises:
        DatasetError: too long for the format.
    """
    labels = () if isinstance(label, (int, float)) else tuple(label)
    scalar = 0.0 if labels else label
    header = _HEADER.pack(len(labels), scalar, number, 0)
    payload = header + struct.pack(f"<{len(labels)}f", *labels) + image
    if len(payload) > _MAX_LENGTH:
        raise DatasetError(
            f"image of {len(image)} bytes; a record holds less than {_MAX_LENGTH + 1}"
        )
    pieces = _split_at_magic(payload)
    last = len(pieces) - 1
    parts = [_WHOLE] if last == 0 else [_FIRST, *[_MIDDLE] * (last - 1), _LAST]
    record = b"".join(
        _PART.pack(MAGIC, part << 29 | len(piece)) + piece
        for part, piece in zip(parts, pieces, strict=True)
    )
    return record + bytes(-len(record) % 4)


def _split_at_magic(payload: bytes) -> list[bytes]:
    pieces = []
    begin = 0
    found = payload.find(_MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            pieces.append(payload[begin:found])
            begin = found + 4
        found = payload.find(_MAGIC_BYTES, found + (4 if found % 4 == 0 else 1))
    return [*pieces, payload[begin:]]
