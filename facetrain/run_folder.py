"""Where a run keeps its files, and which run `--resume` means."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from facetrain.checkpoint import CHECKPOINTS, whole_checkpoint_steps
from facetrain.errors import FacetrainError

RUNS = Path("runs")
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, which exists and can be written.

    Attributes:
        path: the folder.
        resume_step: step of the checkpoint to go on from, 0 for a new run.
        finished: its report is written; nothing is left to do.
    """

    path: Path
    resume_step: int = 0
    finished: bool = False


def choose_run_folder(name: str, out: Path | None, *, resume: bool) -> RunFolder:
    """The folder of a new run, or of the one to go on with.

    Args:
        name: of the recipe; without `out` a new run gets runs/NAME, or runs/NAME-2 and so on where
            earlier runs are, and `resume` means the newest of these that has a checkpoint.
        out: the folder to use.

    Raises:
        FacetrainError: a new run in a used folder, nothing to resume, or a folder that cannot be
            written.
    """
    try:
        folder = _to_resume(name, out) if resume else _new(name, out)
        # Found out now rather than after the first epoch.
        with tempfile.TemporaryFile(dir=folder.path):
            pass
    except OSError as error:
        where = out if out is not None else RUNS
        raise FacetrainError(
            f"run folder {error.filename or where}: cannot be written ({error.strerror}); name "
            "another with --out"
        ) from error
    return folder


def _to_resume(name: str, out: Path | None) -> RunFolder:
    candidates = [out] if out is not None else _numbered(name)
    for folder in reversed(candidates):
        # A start that failed leaves a folder without one.
        if steps := whole_checkpoint_steps(folder / CHECKPOINTS):
            return RunFolder(folder, steps[-1], (folder / RESULTS_FILE).exists())
    raise FacetrainError(
        f"--resume: no checkpoint in {candidates[-1] if candidates else RUNS / name}; start "
        "without --resume, or name the run's folder with --out"
    )


def _new(name: str, out: Path | None) -> RunFolder:
    if out is None:
        RUNS.mkdir(exist_ok=True)
        number = 1 + max((_number(folder, name) for folder in _numbered(name)), default=0)
        while True:
            folder = RUNS / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:  # another run was started just now
                number += 1
            else:
                return RunFolder(folder)
    if out.exists() and not out.is_dir():
        raise FacetrainError(f"--out {out}: is a file; name a folder")
    if whole_checkpoint_steps(out / CHECKPOINTS):
        raise FacetrainError(
            f"--out {out}: holds a run already; add --resume to go on with it, or name another "
            "folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    return RunFolder(out)


def _numbered(name: str) -> list[Path]:
    """Run folders of that name, oldest first."""
    if not RUNS.is_dir():
        return []
    found = [folder for folder in RUNS.iterdir() if folder.is_dir() and _number(folder, name)]
    return sorted(found, key=lambda folder: _number(folder, name))


def _number(folder: Path, name: str) -> int:
    """1 for NAME, n for NAME-n, 0 for a folder of another run."""
    if folder.name == name:
        return 1
    head, _, number = folder.name.rpartition("-")
    return int(number) if head == name and number.isdecimal() else 0
