"""What a data set takes for an image: files, and nothing that waits or never ends."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from facetrain_datasets import indexed_faces
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.file_bytes import read_image_file
from facetrain_datasets.formats import open_faces


@pytest.mark.timeout(20)
def test_what_is_no_image_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(b"image")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    with (tmp_path / "sparse.jpg").open("wb") as file:
        file.truncate(200 << 30)
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    names = ("pipe.jpg", "folder.jpg", "sparse.jpg", "endless.jpg", "nul\0.jpg")
    listed = "".join(f"{name},0\n" for name in ("good.jpg", *names))
    (tmp_path / "faces.csv").write_text(f"path,label\n{listed}".replace("nul\0", "nul"))
    faces = open_faces(tmp_path / "faces.csv")
    assert faces.read(0) == b"image"
    for index, name in enumerate(names[:-1], 1):
        with pytest.raises(DatasetError, match=f"{name}: .*not an image; replace or remove it"):
            faces.read(index)
    with pytest.raises(DatasetError, match=r"nul\\x00.jpg: no name of a file"):
        read_image_file(str(tmp_path / names[-1]))
    with pytest.raises(FileNotFoundError):
        read_image_file(str(tmp_path / "absent.jpg"))


def test_member_too_large_for_an_image_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_faces, "MAX_IMAGE_BYTES", 3)
    (tmp_path / "1.jpg").write_bytes(b"1234")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "1.jpg", "Ada/1.jpg")
    with pytest.raises(DatasetError, match=r"a\.tar: Ada/1\.jpg: 4 bytes, not an image"):
        open_faces(tmp_path / "a.tar").read(0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["a.tar", "a.parquet", "a.rec"])
def test_shard_that_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError, match=rf"{name}: no (such )?file; give"):
        open_faces(tmp_path)
