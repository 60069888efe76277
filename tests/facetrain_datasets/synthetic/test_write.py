from __future__ import annotations

import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facetrain_datasets.decode import check_images, decode_image
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.image_folder import ImageFolder
from facetrain_datasets.synthetic import write_synthetic_faces
from facetrain_datasets.synthetic.write import MANIFEST


def _write(out: Path, **changes: Any) -> int:
    arguments = {"num_identities": 3, "images_per_identity": 2, "seed": 5, **changes}
    return write_synthetic_faces(out, **arguments)


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_set_is_an_image_folder_without_bad_images(tmp_path: Path) -> None:
    assert _write(tmp_path / "faces") == 6
    source = ImageFolder(tmp_path / "faces")
    assert source.identities == ("person_00000", "person_00001", "person_00002")
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert check_images(source, image_size=112, allow_grey=False) == []
    first, second = (decode_image(source.read(i), "x", 112, False).astype(int) for i in (0, 2))
    assert np.abs(first - second).mean() > 5


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        _write(tmp_path / name, seed=seed)
    first, again, other = (_contents(tmp_path / name) for name in "abc")
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_interrupted_call_is_resumed(tmp_path: Path) -> None:
    _write(tmp_path / "whole")

    def stop_after_two(done: int, total: int) -> None:
        assert total == 6
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(tmp_path / "part", progress=stop_after_two)
    assert len(ImageFolder(tmp_path / "part").identities) == 2
    assert _write(tmp_path / "part") == 2
    assert _write(tmp_path / "part") == 0
    assert _contents(tmp_path / "part") == _contents(tmp_path / "whole")


def test_failure_in_mid_identity_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(DatasetError, match=r"faces: synthetic faces cannot be written \(disk full"):
        _write(tmp_path / "faces")
    assert [path.name for path in (tmp_path / "faces").iterdir()] == [MANIFEST]


def test_set_is_readable_by_others(tmp_path: Path) -> None:
    _write(tmp_path / "faces", num_identities=1)
    for path, mode in ((MANIFEST, 0o644), ("person_00000", 0o755)):
        assert stat.S_IMODE((tmp_path / "faces" / path).stat().st_mode) == mode


def test_what_a_killed_call_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    _write(tmp_path / "faces", num_identities=1)
    for name, age_s in (("stale", 4000), ("at_work", 10)):
        part = tmp_path / "faces" / f".person_00001-{name}"
        part.mkdir()
        (part / "0000.jpg").write_bytes(b"")
        os.utime(part, (time.time() - age_s,) * 2)
    _write(tmp_path / "faces", num_identities=1)
    left = [path.name for path in (tmp_path / "faces").glob(".*")]
    assert left == [".person_00001-at_work"]


def test_ranges_make_up_the_whole(tmp_path: Path) -> None:
    _write(tmp_path / "whole")
    _write(tmp_path / "parts", num_identities=1, first_identity=2)
    _write(tmp_path / "parts", num_identities=2)
    assert _contents(tmp_path / "parts") == _contents(tmp_path / "whole")


def test_person_finished_by_another_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "whole")
    rename = Path.rename

    def overtaken(part: Path, person: Path) -> Path:
        shutil.copytree(part, person)
        return rename(part, person)

    monkeypatch.setattr(Path, "rename", overtaken)
    _write(tmp_path / "raced")
    assert _contents(tmp_path / "raced") == _contents(tmp_path / "whole")


def test_progress_counts_images(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    _write(tmp_path / "faces", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 6), (4, 6), (6, 6)]


def test_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "faces", num_identities=1)
    for changes in ({"seed": 6}, {"images_per_identity": 3}):
        with pytest.raises(DatasetError, match=r"synthetic_faces\.json: the folder holds faces"):
            _write(tmp_path / "faces", **changes)
    manifest = tmp_path / "faces" / MANIFEST
    manifest.write_text(json.dumps({"seed": 5})[:4])
    with pytest.raises(DatasetError, match="delete the folder or choose another"):
        _write(tmp_path / "faces")


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(DatasetError, match=r"not empty and without synthetic_faces\.json"):
        _write(tmp_path)


def test_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"file: synthetic faces cannot be written"):
        _write(tmp_path / "file")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_identities", 0), ("images_per_identity", 0), ("seed", -1), ("first_identity", -1)],
)
def test_number_out_of_range_is_named(tmp_path: Path, field: str, value: int) -> None:
    with pytest.raises(DatasetError, match=f"{field} is {value}; allowed"):
        _write(tmp_path / "faces", **{field: value})
    assert not (tmp_path / "faces").exists()
