from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain_datasets.convert import convert
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import FORMATS, open_faces


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_recognised(format: str, make_source: Callable, tmp_path: Path) -> None:
    source = make_source(7)
    convert(source, tmp_path / "faces", format)
    for faces in (open_faces(tmp_path / "faces"), open_faces(tmp_path / "faces", format)):
        assert faces.identities == source.identities
        assert faces.labels.tolist() == source.labels.tolist()
        assert [faces.read(index) for index in range(7)] == source.images


def test_identities_are_left_out_of_any_format(make_source: Callable, tmp_path: Path) -> None:
    convert(make_source(7), tmp_path / "faces", "tar")
    faces = open_faces(tmp_path / "faces", min_images=2, exclude=["person0"])
    assert faces.identities == ["person1"]
    assert faces.labels.tolist() == [0, 0, 0]


def test_stray_list_in_an_image_folder_is_no_list(write_folder: Callable) -> None:
    root = write_folder({"a": ["1.png"]})
    (root / "landmarks.csv").write_text("x")
    assert len(open_faces(root)) == 1


def test_unknown_format_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="format 'zip'; known: auto, folder, list, rec, tar, pa"):
        open_faces(tmp_path, "zip")


def test_file_of_no_known_ending_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "lfw.bin").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"lfw\.bin: not a set of faces by its name; .* \.rec "):
        open_faces(tmp_path / "lfw.bin")


def test_folder_of_several_formats_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.rec", "b.tar"):
        (tmp_path / name).touch()
    with pytest.raises(DatasetError, match=r"files of several formats \(rec, tar\); give a file"):
        open_faces(tmp_path)
