from __future__ import annotations

from pathlib import Path

import pytest

from facetrain_datasets.formats import open_faces
from facetrain_tools.cli import main


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    for person in ("Ada", "Alan"):
        (tmp_path / "faces" / person).mkdir(parents=True)
        (tmp_path / "faces" / person / "1.jpg").write_text(person)
    return tmp_path / "faces"


def test_format_by_flag_or_by_the_name_of_the_destination(
    faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rec, tar = faces.with_name("rec"), faces.with_name("faces.tar")
    assert main(["data", "convert", str(faces), str(rec), "--to", "rec"]) == 0
    assert main(["data", "convert", str(rec), str(tar)]) == 0
    assert main(["data", "convert", str(rec), str(faces.with_name("back"))]) == 0
    assert (faces.with_name("back") / "Ada").is_dir()  # a name without a format is a folder
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{rec}  rec, 2 images of 2 identities, ")
    assert out[2].startswith(f"{tar}  tar, 2 images of 2 identities, ")
    assert out[1] == out[3]
    assert open_faces(tar).identities == ["Ada", "Alan"]


def test_bad_input_is_one_line(faces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(faces.with_name("out"))
    assert main(["data", "convert", str(faces), out, "--to", "zip"]) == 2
    assert "--to zip: choose one of folder, list, rec" in _error(capsys)
    assert main(["data", "convert", str(faces / "no"), str(faces.with_name("out.rec"))]) == 2
    assert "no: no such folder" in _error(capsys)


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]
