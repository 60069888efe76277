"""Which folder a run uses, and which one --resume means."""

from __future__ import annotations

from pathlib import Path

import pytest

from facetrain.errors import FacetrainError
from facetrain.run_folder import RunFolder, choose_run_folder


def _checkpoint(folder: Path, step: int) -> None:
    target = folder / "checkpoints" / f"step-{step:08d}"
    target.mkdir(parents=True)
    (target / "manifest.json").write_text("{}")


def test_new_runs_are_numbered_and_resume_means_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_run_folder("lfw", None, resume=False) == RunFolder(Path("runs/lfw"))
    _checkpoint(Path("runs/lfw"), 40)
    assert choose_run_folder("lfw", None, resume=False) == RunFolder(Path("runs/lfw-2"))
    _checkpoint(Path("runs/lfw-2"), 10)
    _checkpoint(Path("runs/lfw-2"), 20)
    Path("runs/lfw-other").mkdir()
    Path("runs/lfw-2/checkpoints/step-00000030.bak").mkdir()
    assert choose_run_folder("lfw", None, resume=True) == RunFolder(Path("runs/lfw-2"), 20)
    Path("runs/lfw-2/results.json").touch()
    assert choose_run_folder("lfw", None, resume=True) == RunFolder(Path("runs/lfw-2"), 20, True)


def test_resume_passes_over_starts_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/lfw", "runs/lfw-2", "runs/lfw-3/checkpoints/.partial-step-00000005"):
        Path(folder).mkdir(parents=True)
    Path("runs/lfw-3/checkpoints/step-00000004").mkdir()
    with pytest.raises(FacetrainError, match="no checkpoint in runs/lfw-3; start without --resume"):
        choose_run_folder("lfw", None, resume=True)
    _checkpoint(Path("runs/lfw"), 40)
    assert choose_run_folder("lfw", None, resume=True) == RunFolder(Path("runs/lfw"), 40)
    _checkpoint(Path("runs/lfw-2"), 10)
    assert choose_run_folder("lfw", None, resume=True) == RunFolder(Path("runs/lfw-2"), 10)
    with pytest.raises(FacetrainError, match="no checkpoint in runs/lfw-3"):
        choose_run_folder("lfw", Path("runs/lfw-3"), resume=True)


def test_a_used_folder_is_not_overwritten(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 7)
    assert choose_run_folder("lfw", tmp_path, resume=True) == RunFolder(tmp_path, 7)
    with pytest.raises(FacetrainError, match="holds a run already; add --resume"):
        choose_run_folder("lfw", tmp_path, resume=False)


def test_a_folder_that_cannot_be_written_is_found_out_at_once() -> None:
    with pytest.raises(FacetrainError, match=r"/proc/x: cannot be written .* --out"):
        choose_run_folder("lfw", Path("/proc/x"), resume=False)


def test_nothing_to_resume_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(FacetrainError, match=f"no checkpoint in {tmp_path}"):
        choose_run_folder("lfw", tmp_path, resume=True)


def test_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FacetrainError, match="is a file; name a folder"):
        choose_run_folder("lfw", file, resume=False)
