from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols import open_pairs


def test_the_kind_of_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "lfw.txt").write_text("1\nAda\t1\t2\nAda\t1\tBob\t1\n")
    assert open_pairs(tmp_path / "lfw.txt").names[0] == "Ada/Ada_0001.jpg"
    (tmp_path / "table.csv").write_text("left,right,same\na.jpg,b.jpg,1\n")
    assert open_pairs(tmp_path / "table.csv").names == ["a.jpg", "b.jpg"]
    (tmp_path / "set.bin").write_bytes(pickle.dumps(([b"a", b"b"], [True])))
    assert open_pairs(tmp_path / "set.bin").read(1) == b"b"


@pytest.mark.parametrize("name", ["absent.txt", "absent.csv", "absent.bin", "folder"])
def test_absent_files_and_folders_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatasetError, match=name):
        open_pairs(tmp_path / name)
