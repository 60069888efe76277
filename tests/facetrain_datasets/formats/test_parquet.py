from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import read_table, write_table

from facetrain_datasets import parquet_reader
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from facetrain_datasets.formats.parquet import ParquetWriter, RowGroupFaces
from facetrain_datasets.indexed_faces import IndexedFaces

RNG = np.random.default_rng(0)
IMAGES = [RNG.bytes(size) for size in (300, 0, 5, 4000, 1, 300, 2000)]
IMAGES += [IMAGES[3], IMAGES[0], b"\0" * 50]
LABELS = [0, 0, 3, 1, 1, 1, 2, 2, 0, 3]
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}


def struct_of(images: list[bytes]) -> pa.Array:
    return pa.array([{"bytes": image, "path": "x.jpg"} for image in images])


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (PLAIN, IndexedFaces),
        ({**PLAIN, "row_group_size": 3}, IndexedFaces),
        ({**PLAIN, "data_page_size": 100, "write_batch_size": 1}, IndexedFaces),
        ({**PLAIN, "data_page_version": "2.0"}, IndexedFaces),
        ({"compression": "none"}, IndexedFaces),  # dictionary encoding keeps each image once
        ({"compression": "gzip"}, RowGroupFaces),
        ({"compression": "zstd", "row_group_size": 3}, RowGroupFaces),
        ({**PLAIN, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}, RowGroupFaces),
    ],
)
@pytest.mark.parametrize("as_struct", [False, True])
def test_images_and_labels_however_they_are_encoded(
    tmp_path: Path, options: dict[str, Any], kind: type, as_struct: bool
) -> None:
    if as_struct and "column_encoding" in options:
        options = {**options, "column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}}
    images = struct_of(IMAGES) if as_struct else pa.array(IMAGES)
    table = pa.table({"other": LABELS, "label": LABELS, "image": images})
    path = tmp_path / "a.parquet"
    write_table(table, path, **options)
    faces = open_faces(path)
    assert type(faces) is kind
    assert ("convert" in faces.note) == (kind is RowGroupFaces)
    assert [faces.read(index) for index in range(10)] == IMAGES
    assert faces.labels.tolist() == LABELS
    assert faces.describe(4) == f"{path}: row 4"


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_identities_by_name(tmp_path: Path, kind: pa.DataType) -> None:
    names = pa.array(["Bo", "Ada", "Bo"]).cast(kind)
    images = pa.array(IMAGES[:3], pa.large_binary())
    write_table(pa.table({"identity": names, "jpg": images}), tmp_path / "a.parquet")
    faces = open_faces(tmp_path)
    assert faces.identities == ["Ada", "Bo"]
    assert faces.labels.tolist() == [1, 0, 1]
    assert [faces.read(index) for index in range(3)] == IMAGES[:3]


def test_files_with_and_without_compression_together(tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": LABELS})
    write_table(table, tmp_path / "0.parquet", **PLAIN)
    write_table(table, tmp_path / "1.parquet", row_group_size=4)
    faces = open_faces(tmp_path)
    assert [faces.read(index) for index in range(20)] == IMAGES * 2


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": [1], "b": ["x"]}, r"no column image \(binary.*\); it has a \(int64\), b \(string\)"),
        ({"a": [b"1"], "b": [b"x"], "label": [0]}, r"no column image .*it has a \(binary\), b"),
        ({"image": [b"1"], "target": [0]}, r"no column label .*it has image .*, target \(int64\)"),
        ({"image": [b"1"], "label": [0.5]}, r"no column label .* label \(double\)"),
        ({"image": [b"1"], "label": [-1]}, r"row 0: label -1; allowed: class ids from 0"),
        ({"image": [b"1", None], "label": [0, 0]}, r"an empty cell in row group 0"),
        ({"image": [b"1", b"2"], "label": [None, 0]}, r"an empty cell in row group 0"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, r"no image in"),
    ],
)
def test_columns_that_cannot_be_are_named(
    tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=f"a.parquet: {reason}"):
        open_faces(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"no Parquet at all", b"PAR1" + bytes(99) + b"PAR1"]
)
def test_file_that_is_no_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DatasetError, match=r"a.parquet: damaged or no Parquet file"):
        open_faces(tmp_path)


def test_row_group_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"image": [bytes(1 << 20)] * 4, "label": [0] * 4})
    write_table(table, path, compression="zstd", use_dictionary=False)
    assert len(open_faces(path)) == 4  # it is harmless
    monkeypatch.setattr(parquet_reader, "_HARMLESS_BYTES", 1 << 20)
    with pytest.raises(DatasetError, match=r"^a row group unpacks from .* to 4,194,"):
        list(parquet_reader.index_answers(path))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
def test_row_group_that_takes_far_more_memory_than_it_says_is_named(tmp_path: Path) -> None:
    # Each image once in its dictionary: 1 MB that unpack to 20 GB.
    image = pa.array([RNG.bytes(1 << 20)])
    images = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), image)
    table = pa.table({"image": images, "label": np.zeros(20_000, np.int64)})
    path = tmp_path / "a.parquet"
    write_table(table, path, store_schema=False)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(DatasetError, match=r"a\.parquet: damaged"):
        open_faces(path)


def test_columns_of_different_lengths_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(pa.table({"image": IMAGES, "label": LABELS}), tmp_path / "a.parquet")
    columns = {"image": IMAGES, "label": LABELS[:4]}
    monkeypatch.setattr(parquet_reader, "_read_column", lambda *at: columns[at[-1]])
    with pytest.raises(DatasetError, match=r"damaged \(row group 0 has 4 labels, 10 images\)"):
        list(parquet_reader.index_answers(tmp_path / "a.parquet"))


def test_index_that_is_not_of_its_row_groups_is_named(tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": LABELS})
    write_table(table, tmp_path / "a.parquet", compression="gzip")
    faces = open_faces(tmp_path)
    assert isinstance(faces, RowGroupFaces)
    places = replace(faces._index, offsets=np.full(10, 10))
    with pytest.raises(DatasetError, match=r"a\.parquet: row 4: not in row group 0; remove the"):
        RowGroupFaces(places, faces._files).read(4)


def test_pyarrow_is_needed_only_to_build_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ParquetWriter(tmp_path, ["Ada"], np.array([0]))
    writer.finish(writer.write(0, [b"a"], 0))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"needs pyarrow.* pip install 'facetrain\[parquet\]'"):
        open_faces(tmp_path)
    monkeypatch.undo()
    open_faces(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert open_faces(tmp_path).read(0) == b"a"


def test_written_files_are_plain_tables(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path, ["Ada", "Alan"], np.array([1, 0, 1]))
    writer.finish(writer.write(2, [b"c"], writer.write(0, [b"a", b"b"], 0)))
    first = read_table(tmp_path / "000000.parquet")
    assert first.to_pydict() == {"image": [b"a", b"b"], "label": [1, 0]}
    faces = open_faces(tmp_path)
    assert type(faces) is IndexedFaces
    assert faces.identities == ["Ada", "Alan"]
    assert [faces.read(index) for index in range(3)] == [b"a", b"b", b"c"]
