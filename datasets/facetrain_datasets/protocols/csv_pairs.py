"""Pairs of image files as a table: two paths and whether they are of one identity.

    left,right,same[,left_identity,right_identity]
    ann/1.jpg,ann/2.jpg,1
    ann/1.jpg,bob/1.jpg,0

Without a header the columns are left, right, same. Fields are separated by commas, tabs or spaces;
`same` is 1/0 or true/false. Identities are those of the two columns; without these the parent
folders, where they agree with every pair.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.pair_set import PairSet, identities_by_folder

_COLUMNS = ("left", "right", "same")
_IDENTITIES = ("left_identity", "right_identity")
_SAME = {"1": True, "true": True, "0": False, "false": False}


def read_csv_pairs(
    path: str | os.PathLike[str], images_root: str | os.PathLike[str] | None = None
) -> PairSet:
    """Reads a table of pairs; image paths start from `images_root`, or the table's folder.

    Raises:
        DatasetError: no such file, a line that is no pair, or an image with two identities; the
            message names file and line.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DatasetError(f"{file}: no such file; give a table of pairs") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file}: not a readable table of pairs ({error})") from None
    columns, first = _header(file, _fields(file, 1, lines[0] if lines else ""))
    rows: dict[str, int] = {}
    named: dict[int, str] = {}
    left, right, is_same = [], [], []
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip():
            continue
        fields = _fields(file, number, line)
        if len(fields) != len(columns):
            raise DatasetError(
                f"{file}:{number}: {len(fields)} fields, expected {len(columns)} "
                f"({','.join(columns)}); correct the line"
            )
        values = dict(zip(columns, fields, strict=True))
        same = _SAME.get(values["same"].lower())
        if same is None:
            header = "" if first or number > 1 else f", or a header {','.join(_COLUMNS)}"
            raise DatasetError(
                f"{file}:{number}: same is {values['same']!r}; write 1 for a pair of one identity, "
                f"0 for one of two{header}"
            )
        pair = [rows.setdefault(values[side], len(rows)) for side in ("left", "right")]
        if _IDENTITIES[0] in values:
            names = [values[column] for column in _IDENTITIES]
            if (names[0] == names[1]) != same:
                raise DatasetError(
                    f"{file}:{number}: same is {values['same']}, but the identities are "
                    f"{names[0]} and {names[1]}; correct the line"
                )
            for row, name in zip(pair, names, strict=True):
                if named.setdefault(row, name) != name:
                    raise DatasetError(
                        f"{file}:{number}: an image of {name} was of {named[row]} in an earlier "
                        "line; correct one of them"
                    )
        left.append(pair[0])
        right.append(pair[1])
        is_same.append(same)
    if not left:
        raise DatasetError(f"{file}: no pair in it; write {','.join(_COLUMNS)} and one pair a line")
    images = list(rows)
    root = file.parent if images_root is None else Path(images_root)
    arrays = (np.array(left, np.int64), np.array(right, np.int64), np.array(is_same, bool))
    if named:
        _, numbers = np.unique([named[row] for row in range(len(images))], return_inverse=True)
        identities: np.ndarray | None = numbers.astype(np.int64)
    else:
        identities = identities_by_folder(images, *arrays)
    return PairSet(file, images, *arrays, identities=identities, root=root)


def _header(file: Path, fields: list[str]) -> tuple[tuple[str, ...], int]:
    """The columns, and the number of lines before the first pair."""
    names = tuple(field.lower() for field in fields)
    if "same" not in names:
        return _COLUMNS, 0
    for expected in (_COLUMNS, (*_COLUMNS, *_IDENTITIES)):
        if sorted(names) == sorted(expected):
            return names, 1
    raise DatasetError(
        f"{file}:1: columns {', '.join(names)}, expected {', '.join(_COLUMNS)} and, where known, "
        f"{', '.join(_IDENTITIES)}"
    )


def _fields(file: Path, number: int, line: str) -> list[str]:
    for separator in (",", "\t"):
        if separator in line:
            try:
                return [field.strip() for field in next(csv.reader([line], delimiter=separator))]
            except csv.Error as error:
                raise DatasetError(f"{file}:{number}: {error}; correct the line") from None
    return line.split()
