"""Checkpoints without a layout: written by any number of ranks, read by any other.

    step-00000120/
        manifest.json   step, facts of the run, size and CRC-32 of each file, rows of each rank
        common.pt       what is equal on every rank, written by rank 0
        rows-0.pt       rank 0's rows of every tensor that is cut over ranks, and so on; of ranks
                        that hold copies of the same rows, the first ones write

A checkpoint is written under a temporary name, flushed and renamed, so that an interrupted one is
never taken for whole; the last two are kept. Files are tensors and plain values, read with
`weights_only=True`: no code in them is executed. `torch.distributed.checkpoint` is not used because
it needs a torch process group, which a run on another engine does not have.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import pickle
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from facetrain.distributed import Communicator, raise_together
from facetrain.errors import FacetrainError

FORMAT = "facetrain-checkpoint"
VERSION = 2
_KEPT = 2
_PARTIAL = ".partial-step-"
_MANIFEST = "manifest.json"
_COMMON = "common.pt"
BACKBONE = "backbone/"
HEAD = "head/"
CHECKPOINTS = "checkpoints"
"""Folder of a run that holds them."""
_STEP_NAME = re.compile(r"step-\d+")


@dataclass(frozen=True)
class TrainingState:
    """What a run is at one step.

    Attributes:
        step: optimizer steps done.
        facts: what must be the same when going on, by flag name (backbone, classes, ...).
        common: tensors and plain values equal on every rank.
        rows: this rank's rows of tensors that are cut over ranks by their first dimension; empty
            where other ranks hold the same and write them. Rank 0 always writes.
    """

    step: int
    facts: Mapping[str, Any]
    common: Mapping[str, Any]
    rows: Mapping[str, Tensor]


def whole_checkpoint_steps(path: Path) -> list[int]:
    """Steps of the whole checkpoints in a run's checkpoint folder, ascending."""
    return sorted(
        int(entry.name.removeprefix("step-"))
        for entry in path.glob("step-*")
        if _STEP_NAME.fullmatch(entry.name) and (entry / _MANIFEST).is_file()
    )


def with_prefix(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose key begins with `prefix`, under the rest of the key."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: the folder; made at the first save. All ranks must see the same one.
    """

    def __init__(self, path: Path, communicator: Communicator) -> None:
        self.path = path
        self._communicator = communicator

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return whole_checkpoint_steps(self.path)

    def folder(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def save(self, state: TrainingState) -> None:
        """Write `state`; every rank calls it. One object gather and three barriers.

        Raises:
            FacetrainError: it could not be written (no space, no permission), on every rank;
                earlier checkpoints are as they were.
        """
        partial = self.path / f"{_PARTIAL}{state.step:08d}"
        try:
            self._save(partial, state)
        except FacetrainError:
            # All ranks have met it, so none is writing; what is there only keeps the disk full.
            if self._communicator.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise

    def _save(self, partial: Path, state: TrainingState) -> None:
        rank = self._communicator.rank
        problem, files, counts = None, {}, {}
        try:
            if rank == 0:
                for left_by_a_kill in self.path.glob(f"{_PARTIAL}*"):
                    shutil.rmtree(left_by_a_kill, ignore_errors=True)
                partial.mkdir(parents=True)
        except OSError as error:
            problem = _cannot_write(partial, error)
        raise_together(self._communicator, problem)
        try:
            if rank == 0:
                files[_COMMON] = _write(partial / _COMMON, dict(state.common))
            if state.rows:
                name = f"rows-{rank}.pt"
                files[name] = _write(partial / name, dict(state.rows))
            counts = {key: len(rows) for key, rows in state.rows.items()}
        except OSError as error:
            problem = _cannot_write(partial, error)
        raise_together(self._communicator, problem)
        written = self._communicator.all_gather_object((files, counts))
        try:
            if rank == 0:
                self._finish(partial, state, written)
        except OSError as error:
            problem = _cannot_write(partial, error)
        raise_together(self._communicator, problem)

    def _finish(self, partial: Path, state: TrainingState, written: Sequence[Any]) -> None:
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "step": state.step,
            "facts": dict(state.facts),
            "files": {name: facts for files, _ in written for name, facts in files.items()},
            "rows": {key: [counts.get(key, 0) for _, counts in written] for key in state.rows},
        }
        with (partial / _MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        target = self.folder(state.step)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        for step in self.steps()[:-_KEPT]:
            shutil.rmtree(self.folder(step), ignore_errors=True)

    def check(self, step: int, facts: Mapping[str, Any]) -> None:
        """Compare the checkpoint's facts with those of this run that are known already.

        Raises:
            FacetrainError: a damaged manifest, or a run that differs; names every difference.
        """
        folder = self.folder(step)
        self._check_facts(folder, self._manifest(folder)["facts"], facts)

    def model(self, step: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Facts of the run and the backbone's state dict, for evaluation.

        Raises:
            FacetrainError: a damaged file or another format.
        """
        folder = self.folder(step)
        manifest = self._manifest(folder)
        return manifest["facts"], with_prefix(self._read(folder, _COMMON, manifest), BACKBONE)

    def load(
        self,
        step: int,
        facts: Mapping[str, Any],
        ranges: Mapping[str, tuple[int, int]],
        rows: Mapping[str, Tensor],
    ) -> TrainingState:
        """The state of `step`, cut anew; every rank calls it. One object gather.

        Args:
            step: one of `steps()`.
            facts: this run's; each must equal the checkpoint's.
            ranges: [first, end) of this rank's rows, by the key's part before "/".
            rows: this rank's tensors that are cut over ranks. They are written into, straight from
                the mapped files, so that no second copy takes memory; after an error, in part.

        Raises:
            FacetrainError: a damaged file, another format, or a run that differs; on every rank,
                whichever found it.
        """
        problem = None
        try:
            folder = self.folder(step)
            manifest = self._manifest(folder)
            self._check_facts(folder, manifest["facts"], facts)
            common = self._read(folder, _COMMON, manifest)
            self._read_rows(folder, manifest, ranges, rows)
        except FacetrainError as error:
            problem = str(error)
        raise_together(self._communicator, problem)
        return TrainingState(manifest["step"], manifest["facts"], common, rows)

    def _read_rows(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        ranges: Mapping[str, tuple[int, int]],
        rows: Mapping[str, Tensor],
    ) -> None:
        """Fill `rows` from the files of the ranks that wrote them."""
        counts = manifest["rows"]
        if counts.keys() != rows.keys():
            raise _other_rows(folder, ", ".join(sorted(counts)), ", ".join(sorted(rows)))
        read = functools.cache(lambda rank: self._read(folder, f"rows-{rank}.pt", manifest))
        for key, target in rows.items():
            first, end = ranges[key.split("/")[0]]
            start = 0
            for rank, count in enumerate(counts[key]):
                low, high = max(first, start), min(end, start + count)
                if low < high:
                    stored = read(rank)[key]
                    if (stored.dtype, stored.shape[1:]) != (target.dtype, target.shape[1:]):
                        raise _other_rows(folder, _describe(key, stored), _describe(key, target))
                    target[low - first : high - first].copy_(stored[low - start : high - start])
                start += count
            if start < end:
                raise _other_rows(folder, f"{start:,} rows of {key}", f"{end:,}")

    def _manifest(self, folder: Path) -> dict[str, Any]:
        path = folder / _MANIFEST
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            known = manifest["format"] == FORMAT and manifest["version"] == VERSION
            complete = all(isinstance(manifest[key], dict) for key in ("facts", "files", "rows"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(path, f"cannot be read ({error})") from error
        if not (known and complete):
            raise self._damaged(path, f"is not a version {VERSION} {FORMAT}")
        return dict(manifest)

    def _check_facts(
        self, folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> None:
        differing = [
            f"{key} is {stored.get(key)} there and {value} now"
            for key, value in wanted.items()
            if stored.get(key) != value
        ]
        if differing:
            raise FacetrainError(
                f"checkpoint {folder} is of another run: {'; '.join(differing)}; "
                "resume with the same settings and data, or start anew without --resume"
            )

    def _read(self, folder: Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        path = folder / name
        expected = manifest["files"].get(name)
        if expected is None:
            raise self._damaged(path, "is not in the manifest")
        try:
            if path.stat().st_size != expected["bytes"]:
                raise self._damaged(
                    path, f"has {path.stat().st_size:,} bytes of {expected['bytes']:,}"
                )
            with path.open("rb") as file:
                if _crc32(file) != expected["crc32"]:
                    raise self._damaged(path, "has another content than was written")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except OSError as error:
            raise self._damaged(path, f"cannot be read ({error.strerror})") from error
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise self._damaged(path, "holds more than tensors and plain values") from error
        return dict(loaded)

    def _damaged(self, path: Path, what: str) -> FacetrainError:
        others = [step for step in self.steps() if self.folder(step) != path.parent]
        if others:
            advice = f"delete {path.parent} to resume from step {others[-1]}"
        else:
            advice = "it is the only one: start anew without --resume"
        return FacetrainError(f"checkpoint file {path} {what}; {advice}")


def _other_rows(folder: Path, stored: str, wanted: str) -> FacetrainError:
    return FacetrainError(
        f"checkpoint {folder} holds {stored}, where this run has {wanted}: another version or "
        "other settings wrote it; resume with those, or start anew without --resume"
    )


def _describe(key: str, rows: Tensor) -> str:
    return f"{key} as {str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape[1:])} a row"


def _write(path: Path, content: dict[str, Any]) -> dict[str, int]:
    """Write and flush; the file's size in bytes and CRC-32."""
    compact = {
        key: _compact(value) if isinstance(value, Tensor) else value
        for key, value in content.items()
    }
    save_tensors(compact, path)
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "crc32": _crc32(file)}


def save_tensors(content: Mapping[str, Any], path: Path) -> None:
    """`torch.save`, flushed to the disk.

    Raises:
        OSError: it cannot be written; names `path`.
    """
    try:
        with path.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    except RuntimeError as error:
        # torch's zip writer raises this after the system's error, or in place of it.
        cause = error.__context__
        number = cause.errno if isinstance(cause, OSError) else errno.ENOSPC
        what = cause.strerror if isinstance(cause, OSError) else "probably no space left"
        raise OSError(number, what, str(path)) from error


def _compact(value: Tensor) -> Tensor:
    """On the CPU, in a storage of its own: a view would take all of its base along."""
    value = value.detach().cpu()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _crc32(file: BinaryIO) -> int:
    crc = 0
    while block := file.read(2**22):
        crc = zlib.crc32(block, crc)
    return crc


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"checkpoint {path}: cannot be written ({error.strerror}); free space or choose another "
        "folder with --out, then go on with --resume"
    )
