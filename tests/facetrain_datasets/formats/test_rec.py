from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from facetrain_datasets.formats.rec import RecWriter
from facetrain_datasets.formats.recordio import pack_record

Record = tuple[int, float | tuple[float, ...], bytes]  # key, label or labels, image


@pytest.fixture
def write_rec(tmp_path: Path) -> Callable[..., Path]:
    """Writes records, and their .idx with the lines in the order of the file."""

    def write(records: list[Record], idx: bool = True, ids: list[int] | None = None) -> Path:
        rec = tmp_path / "train.rec"
        lines, content = "", b""
        for (key, label, image), number in zip(
            records, ids or [key for key, _, _ in records], strict=True
        ):
            lines += f"{key}\t{len(content)}\n"
            content += pack_record(number, label, image)
        rec.write_bytes(content)
        if idx:
            (tmp_path / "train.idx").write_text(lines)
        return rec

    return write


INSIGHTFACE: list[Record] = [
    (1, 0.0, b"a"),
    (2, (1.0, 7.0), b"b"),  # several labels: the first is the class
    (3, 1.0, b""),  # broken, but an image by its key
    (4, (1.0, 3.0), b""),
    (5, (3.0, 4.0), b""),
    (0, (4.0, 6.0), b""),
]


@pytest.mark.parametrize("idx", [True, False])
def test_images_are_the_keys_that_key_0_names(write_rec: Callable, idx: bool) -> None:
    faces = open_faces(write_rec(INSIGHTFACE, idx=idx))
    assert [faces.read(index) for index in range(len(faces))] == [b"a", b"b", b""]
    assert faces.labels.tolist() == [0, 1, 1]
    assert faces.labels.dtype == np.int64
    assert faces.identities == ["0", "1"]
    assert faces.describe(1).endswith("train.rec: key 2")


def test_every_key_is_an_image_where_key_0_is_one(write_rec: Callable) -> None:
    faces = open_faces(write_rec([(7, 1.0, b"c"), (0, 0.0, b"a"), (3, 0.0, b"b")]))
    assert [faces.read(index) for index in range(3)] == [b"a", b"b", b"c"]
    assert faces.labels.tolist() == [0, 0, 1]


def test_records_without_keys_of_their_own_come_in_the_order_of_the_file(
    write_rec: Callable,
) -> None:
    faces = open_faces(write_rec(INSIGHTFACE[:2] + INSIGHTFACE[3:], idx=False, ids=[0] * 5))
    assert [faces.read(index) for index in range(len(faces))] == [b"a", b"b"]


def test_ranges_beyond_2_to_24_are_not_trusted(write_rec: Callable) -> None:
    end = 2.0**24 + 2  # as a float may have come from one less or one more
    keys = [2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2]
    images: list[Record] = [(key, 3.0, b"x%d" % key) for key in keys]
    faces = open_faces(write_rec([*images, (2**24 + 3, (1.0, end), b""), (0, (end, end + 1), b"")]))
    assert [faces.read(index) for index in range(len(faces))] == [b"x%d" % key for key in keys]


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (2.0**24, r"below 2\*\*24 = 16777216, beyond it classes fall together"),
        (0.5, "a class id is a whole number from 0"),
        (-1.0, "a class id is a whole number from 0"),
        (float("nan"), "a class id is a whole number from 0"),
    ],
)
def test_label_that_is_no_class_id_is_named(write_rec: Callable, label: float, reason: str) -> None:
    with pytest.raises(DatasetError, match=rf"train.rec: key 4 has label .*{reason}"):
        open_faces(write_rec([(1, 0.0, b"a"), (4, label, b"b")]))


@pytest.mark.parametrize("given", ["train.rec", "train.idx", ""])
def test_path_may_be_the_rec_the_idx_or_the_folder(
    write_rec: Callable, tmp_path: Path, given: str
) -> None:
    write_rec(INSIGHTFACE)
    assert len(open_faces(tmp_path / given)) == 3


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("1\t0\n2\t36\n", r"2 lines for the 6 records of train.rec"),
        ("1\t4\n", r"byte 4 on line 1 is not where a record of train.rec begins"),
        ("1\t0\n2\t1000\n", r"byte 1000 on line 2 lies behind the end of train.rec"),
        ("1\t0\n2\n", r"not lines of 'key byte' \(.* at row 2"),
        ("1\n2\n", r"not lines of 'key byte'"),
        ("1\t99999999999999999999\n", r"not lines of 'key byte' \(could not convert"),
        ("1\t0.5\n", r"not lines of 'key byte'"),
        ("\xff\xfe", r"not lines of 'key byte'"),
        ("", r"not lines of 'key byte'"),
    ],
)
def test_idx_that_lies_is_named(
    write_rec: Callable, tmp_path: Path, lines: str, found: str
) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "train.idx").write_text(lines, encoding="latin-1")
    with pytest.raises(DatasetError, match=rf"train.idx: {found}.*: restore both, or remove"):
        open_faces(rec)
    (tmp_path / "train.idx").unlink()
    assert len(open_faces(rec)) == 3


def test_idx_with_a_key_twice_is_named(write_rec: Callable) -> None:
    with pytest.raises(DatasetError, match=r"train.idx: a key twice"):
        open_faces(write_rec([(1, 0.0, b"a"), (1, 0.0, b"b")]))


def test_idx_older_than_the_records_is_not_used_where_it_is_wrong(
    write_rec: Callable, tmp_path: Path
) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "train.idx").write_text("1\t0\n")
    os.utime(tmp_path / "train.idx", (1, 1))
    faces = open_faces(rec)
    assert len(faces) == 3
    assert "stale and not used" in faces.note


def test_number_of_classes_is_the_property_files(write_rec: Callable, tmp_path: Path) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "property").write_text("11,112,112")
    assert open_faces(rec).identities == [f"{number:02d}" for number in range(11)]


@pytest.mark.parametrize(
    "content", ["1,112,112", "many", "", "-2,1,1", "999999999999999,1,1", "9" * 5000]
)
def test_property_file_that_cannot_be_is_named(
    write_rec: Callable, tmp_path: Path, content: str
) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "property").write_text(content)
    with pytest.raises(DatasetError, match=r"property: expected 'num_classes,height,width' with"):
        open_faces(rec)


def test_more_classes_than_the_images_can_need_are_refused(
    write_rec: Callable, tmp_path: Path
) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "property").write_text("16777216,112,112")
    with pytest.raises(DatasetError, match=r"class ids up to 16777215 for \d images"):
        open_faces(rec)


def test_names_are_read_from_beside(write_rec: Callable, tmp_path: Path) -> None:
    rec = write_rec(INSIGHTFACE)
    (tmp_path / "identities.txt").write_text("Ada\nAlan\n")
    assert open_faces(rec).identities == ["Ada", "Alan"]
    (tmp_path / "identities.txt").write_text("Ada\n")
    with pytest.raises(DatasetError, match=r"identities.txt: 1 names for 2 classes"):
        open_faces(rec)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a.rec: no such file"):
        open_faces(tmp_path / "a.idx")
    with pytest.raises(DatasetError, match=r"expected one .rec file, found none"):
        open_faces(tmp_path, "rec")
    (tmp_path / "a.rec").touch()
    with pytest.raises(DatasetError, match=r"a.rec: no image in it"):
        open_faces(tmp_path)
    (tmp_path / "b.rec").touch()
    with pytest.raises(DatasetError, match=r"expected one .rec file, found a.rec, b.rec"):
        open_faces(tmp_path)


def test_written_as_insightface_lays_it_out(tmp_path: Path) -> None:
    writer = RecWriter(tmp_path, ["Ada", "nobody", "Alan"], np.array([0, 0, 2]))
    position = writer.write(0, [b"a", b"b"], 0)
    with (tmp_path / "train.rec").open("ab") as file:
        file.write(b"half a record")  # as a killed process leaves it
    writer.finish(writer.write(2, [b"c"], position))
    expected = [
        (1, 0, b"a"),
        (2, 0, b"b"),
        (3, 2, b"c"),
        (4, (1, 3), b""),
        (5, (3, 3), b""),
        (6, (3, 4), b""),
        (0, (4, 7), b""),
    ]
    content = b"".join(pack_record(*record) for record in expected)
    assert (tmp_path / "train.rec").read_bytes() == content
    assert (tmp_path / "property").read_text() == "3,112,112"
    assert (tmp_path / "identities.txt").read_text() == "Ada\nnobody\nAlan\n"
    first = [line.split("\t") for line in (tmp_path / "train.idx").read_text().splitlines()]
    assert [int(key) for key, _ in first] == [key for key, _, _ in expected]
    assert [int(start) for _, start in first][:3] == [0, 36, 72]


def test_more_classes_than_floats_can_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"16777217 classes; .*: write tar or Parquet"):
        RecWriter(tmp_path, range(2**24 + 1), np.zeros(1, np.int64))  # type: ignore[arg-type]


def test_real_file_of_im2rec(shared_data: Path, tmp_path: Path) -> None:
    for file in (shared_data / "formats" / "rec_popkorn").iterdir():
        shutil.copy(file, tmp_path)
    faces = open_faces(tmp_path)
    listed = sorted(
        (int(index), int(label))
        for index, label, _ in map(str.split, (tmp_path / "train.lst").read_text().splitlines())
    )
    assert faces.labels.tolist() == [label for _, label in listed]
    assert [faces.describe(i).rpartition(" ")[2] for i in range(8)] == [str(i) for i, _ in listed]
    assert all(faces.read(index)[:2] == b"\xff\xd8" for index in range(8))
    (tmp_path / "train.idx").unlink()
    again = open_faces(tmp_path)
    assert [again.read(index) for index in range(8)] == [faces.read(index) for index in range(8)]
