"""Where a run keeps its files, and which run `--resume` means."""

from __future__ import annotations

from pathlib import Path

from facetrain.checkpoint import whole_checkpoint_steps
from facetrain.errors import FacetrainError

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"


def choose_run_folder(name: str, out: Path | None, *, resume: bool) -> tuple[Path, int]:
    """The run folder and the step to go on from, 0 for a new run.

    Args:
        name: of the recipe; without `out` the folder is runs/NAME, or runs/NAME-2 and so on where
            earlier runs are; `resume` then means the newest of these.
        out: the folder to use.

    Raises:
        FacetrainError: a new run in a used folder, or nothing to resume.
    """
    if resume:
        candidates = [out] if out is not None else _numbered(name)
        for folder in reversed(candidates):
            if steps := whole_checkpoint_steps(folder / CHECKPOINTS):
                return folder, steps[-1]
        where = out if out is not None else RUNS / name
        raise FacetrainError(
            f"--resume: no checkpoint in {where}; start without --resume, or name the run's folder "
            "with --out"
        )
    if out is None:
        used = _numbered(name)
        number = 1 + max((_number(folder, name) for folder in used), default=0)
        return (RUNS / name if number == 1 else RUNS / f"{name}-{number}"), 0
    if out.exists() and not out.is_dir():
        raise FacetrainError(f"--out {out}: is a file; name a folder")
    if whole_checkpoint_steps(out / CHECKPOINTS):
        raise FacetrainError(
            f"--out {out}: holds a run already; add --resume to go on with it, or name another "
            "folder"
        )
    return out, 0


def _numbered(name: str) -> list[Path]:
    """Run folders of that name, oldest first."""
    found = [
        folder for folder in RUNS.glob(f"{name}*") if folder.is_dir() and _number(folder, name)
    ]
    return sorted(found, key=lambda folder: _number(folder, name))


def _number(folder: Path, name: str) -> int:
    """1 for NAME, n for NAME-n, 0 for a folder of another run."""
    if folder.name == name:
        return 1
    head, _, number = folder.name.rpartition("-")
    return int(number) if head == name and number.isdigit() else 0
