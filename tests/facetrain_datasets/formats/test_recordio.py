from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.recordio import (
    MAGIC,
    image_of_parts,
    pack_record,
    scan_records,
)

WORD = struct.pack("<I", MAGIC)


def slow_record(payload: bytes) -> bytes:
    """A record as the format describes it, word by word."""
    parts = [b""]
    for at in range(0, len(payload), 4):
        word = payload[at : at + 4]
        if word == WORD:
            parts.append(b"")
        else:
            parts[-1] += word
    record = b""
    for number, part in enumerate(parts):
        kind = 0 if len(parts) == 1 else 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        record += struct.pack("<II", MAGIC, kind * 2**29 + len(part)) + part
    while len(record) % 4:
        record += b"\0"
    return record


def scanned_images(path: Path) -> list[bytes]:
    data = path.read_bytes()
    images = []
    for record in scan_records(path):
        found = data[record["offset"] :][: abs(record["length"])]
        images.append(found if record["length"] >= 0 else image_of_parts(found))
    return images


words = st.sampled_from([WORD, WORD[:2], b"abcd", b"x", b""])
images = st.lists(words, max_size=12).map(b"".join)


@given(image=images, labels=st.lists(st.integers(0, 1 << 24), max_size=3))
def test_record_is_as_the_format_describes(image: bytes, labels: list[int]) -> None:
    if labels:
        header = struct.pack(f"<IfQQ{len(labels)}f", len(labels), 0, 7, 0, *labels)
        assert pack_record(7, labels, image) == slow_record(header + image)
    else:
        header = struct.pack("<IfQQ", 0, 5, 7, 0)
        assert pack_record(7, 5, image) == slow_record(header + image)


def test_scan_finds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    written = [b"", b"a", WORD, WORD * 3, b"x" + WORD, b"four" + WORD + b"x", b"last"]
    labels = [3, (4.0, 9.0), 5, (6,), 7, 8, (9, 10)]
    path.write_bytes(
        b"".join(pack_record(n, *pair) for n, pair in enumerate(zip(labels, written, strict=True)))
    )
    records = scan_records(path)
    assert scanned_images(path) == written
    assert records["label"].tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert records["id"].tolist() == list(range(7))
    assert records["num_labels"].tolist() == [0, 2, 0, 1, 0, 0, 2]
    assert (records["length"] < 0).tolist() == [False, False, True, True, False, True, False]


def test_magic_in_the_header_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    payload = struct.pack("<IfQQ", 0, 1.0, MAGIC, 0) + b"image"
    path.write_bytes(slow_record(payload))
    (record,) = scan_records(path)
    assert (record["label"], record["id"]) == (1.0, MAGIC)
    assert scanned_images(path) == [b"image"]


def test_file_cut_anywhere_is_named_with_the_byte_where_the_whole_records_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.rec"
    records = [
        pack_record(0, 1, b"abcde"),
        pack_record(1, 1, WORD * 2),
        pack_record(2, (1, 2), b""),
    ]
    ends = [0, len(records[0]), len(records[0] + records[1]), len(b"".join(records))]
    whole = b"".join(records)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        complete = max(end for end in ends if end <= size)
        # Padding that is missing takes nothing away.
        if size in ends or ends[1] - 3 <= size < ends[1]:
            assert len(scan_records(path)) == ends.index(complete) + (size not in ends)
            continue
        with pytest.raises(DatasetError, match=rf"a.rec: cut: .* truncate -s {complete} a.rec"):
            scan_records(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"no RecordIO at all, but text", "0x52206f6e, no magic number, at byte 0"),
        (struct.pack("<II", MAGIC, 3 << 29 | 4) + b"abcd", "part of a record out of order"),
        (struct.pack("<II", MAGIC, 8) + b"abcdefgh", "record of 8 bytes, header of"),
        (struct.pack("<III", MAGIC, 24, 9) + bytes(20), "record of 24 bytes, header of 60"),
        (pack_record(0, 0, b"ab") + b"\1" * 32, "no magic number, at byte 36"),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"damaged, or no RecordIO file: .*{found}"):
        scan_records(path)


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(pack_record(0, 0, bytes(1 << 20)) * 3)
    calls: list[tuple[int, int]] = []
    scan_records(path, lambda done, total: calls.append((done, total)))
    size = path.stat().st_size
    assert calls == [(size // 3 * n, size) for n in (1, 2, 3)]
