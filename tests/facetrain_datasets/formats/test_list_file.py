from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from facetrain_datasets.formats.image_folder import IMAGE_SUFFIXES
from facetrain_datasets.formats.list_file import ListedFaces, ListWriter
from facetrain_datasets.packed_strings import PackedStrings


@pytest.fixture
def write_list(tmp_path: Path) -> Callable[..., Path]:
    """Writes a list beside a few files."""
    for name in ("a.jpg", "b b.jpg", "c,c.jpg"):
        (tmp_path / name).write_text(name)

    def write(content: str, name: str = "faces.csv") -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("content", "identities"),
    [
        ('path,label\na.jpg,0\n"c,c.jpg",1\n\n', ["0", "1"]),
        ('\ufeffwidth,label,path\r\n1,0,a.jpg\r\n1,1,"c,c.jpg"\r\n', ["0", "1"]),
        ('path,identity\na.jpg,Ada\n"c,c.jpg","Bo, Jr."\n', ["Ada", "Bo, Jr."]),
        ("a.jpg 0\nc,c.jpg 1\n", ["0", "1"]),
        ("a.jpg\t0\n\nc,c.jpg\t1", ["0", "1"]),
        ("a.jpg\tAda\nc,c.jpg\tBo", ["Ada", "Bo"]),
        ("7\t0\ta.jpg\n9\t1\tc,c.jpg\n", ["0", "1"]),
        ("7\t0.000000\ta.jpg\n9\t1.000000\t5.5\tc,c.jpg\n", ["0", "1"]),
    ],
)
def test_every_form_of_a_list(
    write_list: Callable[..., Path], content: str, identities: list[str]
) -> None:
    path = write_list(content)
    faces = open_faces(path)
    assert faces.identities == identities
    assert faces.labels.tolist() == [0, 1]
    assert [faces.read(index) for index in range(2)] == [b"a.jpg", b"c,c.jpg"]
    assert faces.describe(1) == str(path.parent / "c,c.jpg")
    assert len(pickle.dumps(faces)) < 500
    assert pickle.loads(pickle.dumps(faces)).read(1) == b"c,c.jpg"


def test_path_with_spaces_before_the_label(write_list: Callable[..., Path]) -> None:
    assert open_faces(write_list("b b.jpg 0\n", "x.lst")).read(0) == b"b b.jpg"


def test_absolute_paths_are_taken(write_list: Callable[..., Path], tmp_path: Path) -> None:
    assert open_faces(write_list(f"{tmp_path}/a.jpg 0\n")).read(0) == b"a.jpg"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", r"faces.csv: no image in it"),
        ("path,label\n", r"faces.csv: no image in it"),
        ("path,age\na.jpg,3\n", r"faces.csv:1: columns path, age; expected path and label or"),
        ("path,label\na.jpg,0\nb.jpg\n", r"faces.csv:3: expected path,label, found 'b.jpg'"),
        ("path,label\na.jpg,0\n\n,1\n", r"faces.csv:4: expected path,label, found ',1'"),
        ("path,label\na.jpg,Ada\n", r"faces.csv:2: expected path,label, found 'a.jpg,Ada'"),
        ("path,label\na.jpg,0\nb.jpg,1099511627776\n", r"class ids up to 1099511627776 for 2 im"),
        ("path,label\na.jpg,0\nb.jpg,16777215\n", r"class ids up to 16777215 for 2 images"),
        ("file,who\na,b\n", r"csv:1: .* or a header with the columns path and label or identity"),
        ("a.jpg 0\nb.jpg\n", r"faces.csv:2: expected path label, or .* found 'b.jpg'"),
        ("a.jpg 0\nb\0.jpg 1\n", r"faces.csv:2: expected path label"),
        ("a.jpg 0\nb.jpg Ada\n", r"b.jpg: label 'Ada' where those before are numbers"),
        ("a.jpg Ada\nb.jpg 0\n", r"b.jpg: label 0 where those before are names"),
        ("no.jpg 0\n", r"first image, .*no.jpg, does not exist; paths are relative to the folder"),
        ('path,label\n"a.jpg,0\n' + "x" * 140_000, r"faces.csv:\d+: field larger than field limit"),
    ],
)
def test_line_that_cannot_be_is_named(
    write_list: Callable[..., Path], content: str, reason: str
) -> None:
    with pytest.raises(DatasetError, match=reason):
        open_faces(write_list(content))


@pytest.mark.parametrize("form", ["path,label\na.jpg,0\n{},1\n", "a.jpg 0\n\n{} 1\n"])
@pytest.mark.parametrize("name", ["../.ssh/id_ed25519", "/etc/passwd", ".jpg", "a.jpg.txt"])
def test_file_that_is_not_called_as_an_image_is_refused(
    write_list: Callable[..., Path], form: str, name: str
) -> None:
    with pytest.raises(DatasetError) as error:
        open_faces(write_list(form.format(name)))
    assert f"faces.csv:3: {name!r} is no name of an image; allowed: .bmp .jpeg .jpg" in str(
        error.value
    )


def test_index_of_another_list_opens_no_private_file(
    write_list: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("private")
    faces = open_faces(write_list("a.jpg 0\n"))
    assert isinstance(faces, ListedFaces)
    forged = ListedFaces(replace(faces._index, names=PackedStrings.of(["key"])), tmp_path)
    with pytest.raises(DatasetError, match=r"key: no name of an image; remove the list's index"):
        forged.read(0)


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_image_suffix_is_taken(write_list: Callable[..., Path], suffix: str) -> None:
    path = write_list(f"x{suffix.upper()} 0\n")
    (path.parent / f"x{suffix.upper()}").write_bytes(b"image")
    assert open_faces(path).read(0) == b"image"


def test_absent_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a.csv: no such file; give a list of images"):
        open_faces(tmp_path / "a.csv")


def test_absent_image_is_named_when_read(write_list: Callable[..., Path]) -> None:
    faces = open_faces(write_list("a.jpg 0\nno.jpg 0\n"))
    with pytest.raises(FileNotFoundError, match=r"no.jpg"):
        faces.read(1)


def test_written_list_is_also_an_image_folder(tmp_path: Path) -> None:
    writer = ListWriter(tmp_path, ["Bo, Jr.", "Ada"], np.array([0, 1]))
    writer.finish(writer.write(0, [b"b", b"a"], 0))
    assert (tmp_path / "list.csv").read_text() == (
        'path,identity\nAda/000000001.jpg,Ada\n"Bo, Jr./000000000.jpg","Bo, Jr."\n'
    )
    for faces in (open_faces(tmp_path), open_faces(tmp_path, "list")):
        assert faces.identities == ["Ada", "Bo, Jr."]
        assert [faces.read(index) for index in range(2)] == [b"a", b"b"]
