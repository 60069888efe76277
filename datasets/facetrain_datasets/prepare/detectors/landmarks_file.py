"""Landmarks that another detector has found, from a CSV file.

Columns `file` (the photo's path below the folder or list of photos) and `left_eye_x`, `left_eye_y`,
`right_eye_x`, ..., `right_mouth_y` in pixels of the upright photo; also, if known, the box `x1`,
`y1`, `x2`, `y2` and `score`. A photo with several faces has several lines.
"""

from __future__ import annotations

import csv
import math
import posixpath
from collections import defaultdict
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.prepare.detectors.face import Face

_POINTS = tuple(
    f"{part}_{axis}"
    for part in ("left_eye", "right_eye", "nose", "left_mouth", "right_mouth")
    for axis in "xy"
)
_BOX = ("x1", "y1", "x2", "y2")


class LandmarksFile:
    """Looks a photo up instead of searching it.

    Args:
        path: the CSV file.
        min_score: faces less certain are left out, where the file has scores.

    Raises:
        DatasetError: no such file, a column is missing, or a line holds no numbers.
    """

    def __init__(self, path: Path, min_score: float = 0.5) -> None:
        self.path = path
        self.min_score = min_score
        self._rows_of: defaultdict[str, list[int]] = defaultdict(list)
        rows = []
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file)
                self._columns = _columns(path, reader.fieldnames or ())
                for row in reader:
                    where = f"{path}:{reader.line_num}"
                    rows.append([_number(where, name, row[name]) for name in self._columns])
                    if not row["file"]:
                        raise DatasetError(f"{where}: no photo named under file; correct the line")
                    self._rows_of[posixpath.normpath(row["file"])].append(len(rows) - 1)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DatasetError(f"landmarks {path}: cannot be read ({error})") from error
        self._values = np.array(rows, dtype=np.float64).reshape(-1, len(self._columns))

    def describe(self) -> str:
        return f"landmarks of {len(self._rows_of):,} photos in {self.path.name}"

    def detect(self, image: np.ndarray, name: str) -> list[Face]:
        faces = []
        for row in self._rows_of.get(posixpath.normpath(name), ()):
            of = dict(zip(self._columns, self._values[row].tolist(), strict=True))
            points = np.array([of[column] for column in _POINTS]).reshape(5, 2)
            corners = (
                [of[column] for column in _BOX] if "x1" in of else [*points.min(0), *points.max(0)]
            )
            faces.append(Face(np.array(corners), of.get("score", 1.0), points))
        faces = [face for face in faces if face.score >= self.min_score]
        return sorted(faces, key=lambda face: -face.score)


def _columns(path: Path, header: object) -> tuple[str, ...]:
    """The columns of numbers to read; box and score only where they are there."""
    found = list(header) if isinstance(header, (list, tuple)) else []
    missing = [name for name in ("file", *_POINTS) if name not in found]
    if missing:
        raise DatasetError(
            f"landmarks {path}: no column {', '.join(missing)}; expected file, "
            f"{', '.join(_POINTS)} and perhaps {', '.join(_BOX)}, score"
        )
    box = _BOX if all(name in found for name in _BOX) else ()
    return (*_POINTS, *box, *(("score",) if "score" in found else ()))


def _number(where: str, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DatasetError(f"{where}: {column} is {text!r}, expected a number; correct the line")
    return value
