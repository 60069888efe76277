"""What became of each photo, one JSON line each, appended as it is known: the memory of a resume.

    {"settings": {...}}                                              the first line
    {"photo": "ann/1.jpg", "file": "ann/1.jpg", "reason": "", "detail": "", "score": 0.83}

`reason` is empty where `file` was written. A line that a kill cut short is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_index import named_errors

_LONGEST_LINE = 2**16


@dataclass(frozen=True)
class Outcome:
    """What became of one photo.

    Attributes:
        photo: its name.
        file: of the aligned face, below the output folder; also where none was written.
        reason: why the photo was rejected, a few words; empty where it was not.
        detail: the reason with its numbers.
        score: the detector's, of the face chosen.
        points: its landmarks in the photo, x and y of each in turn.
    """

    photo: str
    file: str
    reason: str = ""
    detail: str = ""
    score: float = 0.0
    points: tuple[float, ...] = ()


class Journal:
    """The journal of one output folder; one process at a time may hold it.

    Args:
        path: the file, made where absent.
        settings: what the outcomes depend on.

    Raises:
        DatasetError: another process holds it, or it was written with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise DatasetError(
                f"{path.parent}: another process is writing to it; wait, or choose another folder"
            ) from error
        try:
            self._begin(dict(settings))
        except BaseException:
            self._file.close()
            raise

    def _begin(self, settings: dict[str, Any]) -> None:
        size = self._file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_LINE)
        self._file.seek(start)
        self._file.truncate(start + self._file.read().rfind(b"\n") + 1)
        self._file.seek(0)
        first = self._file.readline()
        if not first:
            self._write({"settings": settings})
            return
        found = _parsed(self.path, 1, first).get("settings")
        if not isinstance(found, dict):
            raise _damaged(self.path, 1)
        if found != settings:
            names = [name for name in settings if found.get(name) != settings[name]]
            was = ", ".join(f"{name} {found.get(name)}, now {settings[name]}" for name in names)
            raise DatasetError(
                f"{self.path.parent}: holds faces prepared otherwise ({was}); choose another "
                "folder, or delete this one to begin anew"
            )

    def add(self, outcome: Outcome) -> None:
        """Appends one line; it is in the file when the call returns."""
        self._write(asdict(outcome))

    def _write(self, record: Mapping[str, Any]) -> None:
        with named_errors(self.path):
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Lets others have it."""
        self._file.close()


def read_outcomes(path: Path) -> Iterator[Outcome]:
    """The outcomes of a journal, in its order.

    Raises:
        DatasetError: a line that is none, named by its number.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if number == 1 or not line.endswith("\n"):
                continue
            record = _parsed(path, number, line)
            try:
                yield Outcome(**{**record, "points": tuple(record["points"])})
            except (TypeError, KeyError):
                raise _damaged(path, number) from None


def _parsed(path: Path, number: int, line: str | bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _damaged(path, number)
    return record


def _damaged(path: Path, number: int) -> DatasetError:
    return DatasetError(
        f"{path}:{number}: not a line of a journal of prepared photos; delete the folder and "
        "prepare anew"
    )
