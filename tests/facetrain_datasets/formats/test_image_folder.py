from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.image_folder import ImageFolder

WriteFolder = Callable[[dict[str, list[str]]], Path]


def test_identities_and_images_sorted_with_int64_labels(write_folder: WriteFolder) -> None:
    source = ImageFolder(write_folder({"b": ["2.png", "1.png"], "a": ["x.PNG"], "c": ["z.png"]}))
    assert source.identities == ("a", "b", "c")
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 1, 1, 2]
    assert [source.path(i).name for i in range(len(source))] == ["x.PNG", "1.png", "2.png", "z.png"]
    assert source.read(1) == (source.root / "b" / "1.png").read_bytes()
    assert source.describe(3) == str(source.root / "c" / "z.png")


def test_hidden_and_foreign_files_are_no_images(write_folder: WriteFolder) -> None:
    root = write_folder({"a": ["1.png", ".hidden.png", "notes.txt"], ".cache": ["1.png"]})
    (root / "landmarks.csv").write_text("x")
    source = ImageFolder(root)
    assert source.identities == ("a",)
    assert len(source) == 1


def test_exclude_and_min_images_leave_out_and_count(write_folder: WriteFolder) -> None:
    root = write_folder({"a": ["1.png", "2.png"], "b": ["1.png"], "c": ["1.png", "2.png"]})
    source = ImageFolder(root, exclude={"c", "nobody"}, min_images=2)
    assert source.identities == ("a",)
    assert (source.num_excluded, source.num_too_small) == (1, 1)


def test_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"absent: no such folder; give the folder"):
        ImageFolder(tmp_path / "absent")


def test_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"file: not a folder"):
        ImageFolder(tmp_path / "file")


def test_root_without_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "loose.jpg").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"no identity in it; it must hold one folder per"):
        ImageFolder(tmp_path)


def test_identity_without_images_is_named(write_folder: WriteFolder) -> None:
    with pytest.raises(DatasetError, match=r"faces/b: identity folder without images .* remove"):
        ImageFolder(write_folder({"a": ["1.png"], "b": []}))


def test_nothing_left_is_counted(write_folder: WriteFolder) -> None:
    root = write_folder({"a": ["1.png"], "b": ["1.png"]})
    with pytest.raises(DatasetError, match=r"no identity left of 2 folders \(1 excluded .*1 with"):
        ImageFolder(root, exclude=["a"], min_images=2)


def test_min_images_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="min_images is 0"):
        ImageFolder(tmp_path, min_images=0)


def test_real_faces_have_the_published_counts(shared_data: Path) -> None:
    source = ImageFolder(shared_data / "lfw112")
    assert (len(source.identities), len(source)) == (5749, 13233)
