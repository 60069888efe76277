"""The meta files of IJB-B and IJB-C: which faces form which template, and what to compare.

In one folder, `ijbc` (or `ijbb`) before each name; fields are separated by spaces, without header:

- `_face_tid_mid.txt`: image name, template, media.
- `_template_pair_label.txt`: template, template, 0 or 1 (IJB-C: 15.7 million lines).
- `_name_5pts_score.txt`: image name, x1 y1 .. x5 y5 in pixels, detector score.
- `_1N_gallery_G1.csv`, `_G2.csv` (IJB-B: `S1`, `S2`), `_1N_probe_mixed.csv`: with a header, columns
  of template and subject ids.

Maze et al., "IARPA Janus Benchmark-C", 2018.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError

_FACES, _PAIRS, _POINTS = "face_tid_mid.txt", "template_pair_label.txt", "name_5pts_score.txt"
_PROBES = "1N_probe_mixed.csv"
_BLOCK_BYTES = 1 << 24
_MAX_EXACT = 1 << 53  # of numbers read as floats
_TEMPLATE_COLUMNS = frozenset({"templateid", "template", "tid"})
_SUBJECT_COLUMNS = frozenset({"subjectid", "subject", "sid"})


@dataclass(frozen=True, eq=False)
class IjbFaces:
    """Every face of the set, in the order of the meta file.

    Attributes:
        names: of the images, [N].
        templates: int64 [N].
        media: int64 [N].
        points: five landmarks in pixels, float32 [N, 5, 2].
        scores: of the detector, float32 [N].
    """

    names: Sequence[str]
    templates: np.ndarray
    media: np.ndarray
    points: np.ndarray
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class IjbPairs:
    """Pairs of templates: ids int64 [P] and [P], and whether they are of one subject."""

    left: np.ndarray
    right: np.ndarray
    is_same: np.ndarray


@dataclass(frozen=True, eq=False)
class IjbTemplates:
    """Templates of one 1:N list: ids int64 [T], each once, and their subjects int64 [T]."""

    name: str
    templates: np.ndarray
    subjects: np.ndarray


@dataclass(frozen=True)
class IjbMeta:
    """A folder of meta files; nothing is read before it is asked for.

    Attributes:
        folder: that holds them.
        prefix: "ijbb", "ijbc" or the like, before the name of each file.
    """

    folder: Path
    prefix: str

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.prefix}_{name}"

    def faces(self) -> IjbFaces:
        """Faces with their landmarks and scores.

        Raises:
            DatasetError: an absent or unreadable file, or files that name different images.
        """
        path = self._path(_FACES)
        names, numbers = _named_numbers(path, 2, "template, media")
        whole = (np.floor(numbers) == numbers) & (np.abs(numbers) <= _MAX_EXACT)
        if not whole.all():
            line = 1 + int(np.argmin(whole.all(axis=1)))
            raise DatasetError(
                f"{path}:{line}: template and media must be whole numbers, found "
                f"{', '.join(f'{value:g}' for value in numbers[line - 1])}; correct the line"
            )
        points_path = self._path(_POINTS)
        same_names, values = _named_numbers(points_path, 11, "ten coordinates, detector score")
        if same_names != names:
            raise DatasetError(
                f"{points_path}: names other images than {self.prefix}_{_FACES}; use one release"
            )
        points = values[:, :10].astype(np.float32).reshape(-1, 5, 2)
        templates, media = numbers.astype(np.int64).T
        return IjbFaces(names, templates, media, points, values[:, 10].astype(np.float32))

    def pairs(self) -> Iterator[IjbPairs]:
        """The 1:1 pairs in the file's order, about a million at a time.

        Raises:
            DatasetError: an absent file, or a line that is no pair.
        """
        path = self._path(_PAIRS)
        line = 1
        for text in _blocks(path):
            values = _numbers(text, np.int64)
            num_lines = text.count("\n")
            if len(values) != 3 * num_lines or not np.isin(values[2::3], (0, 1)).all():
                _name_bad_pair(path, line, text)
            line += num_lines
            triples = values.reshape(-1, 3)
            yield IjbPairs(triples[:, 0], triples[:, 1], triples[:, 2] == 1)

    def galleries(self) -> list[IjbTemplates]:
        """The 1:N galleries, by name.

        Raises:
            DatasetError: there is none, or one cannot be read.
        """
        paths = sorted(self.folder.glob(f"{self.prefix}_1N_gallery_*.csv"))
        if not paths:
            raise DatasetError(f"{self.folder}: no {self.prefix}_1N_gallery_*.csv; 1:N needs them")
        return [_templates(path, path.stem.rpartition("_")[2]) for path in paths]

    def probes(self) -> IjbTemplates:
        """The 1:N probes.

        Raises:
            DatasetError: the file is absent or cannot be read.
        """
        return _templates(self._path(_PROBES), "probes")


def open_ijb(folder: Path) -> IjbMeta:
    """The meta files in a folder.

    Raises:
        DatasetError: none there, or those of two sets.
    """
    found = sorted(folder.glob(f"*_{_FACES}")) if folder.is_dir() else []
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DatasetError(
            f"{folder}: expected one file *_{_FACES}, found {names}; give the folder of the meta "
            "files of one set"
        )
    return IjbMeta(folder, found[0].name.removesuffix(f"_{_FACES}"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file; it is part of the meta files") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read ({error})") from None


def _numbers(text: str, dtype: type) -> np.ndarray:
    """The numbers of a text; empty where something else stands in it."""
    with warnings.catch_warnings():  # NumPy warns of text that is no number and goes on
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, dtype=dtype, sep=" ")
        except (ValueError, DeprecationWarning):
            return np.empty(0, dtype)


def _named_numbers(path: Path, num: int, what: str) -> tuple[list[str], np.ndarray]:
    """Lines of a name and so many numbers: the names, and float64 [lines, num]."""
    names, rests = [], []
    for number, line in enumerate(_lines(path), 1):
        name, _, rest = line.partition(" ")
        if rest.count(" ") != num - 1:
            raise DatasetError(
                f"{path}:{number}: expected image, {what}, found {line[:60]!r}; separate them by "
                "one space each"
            )
        names.append(name)
        rests.append(rest)
    values = _numbers(" ".join(rests), np.float64)
    if len(names) == 0:
        raise DatasetError(f"{path}: no lines in it")
    if len(values) != num * len(names) or not np.isfinite(values).all():
        for number, rest in enumerate(rests, 1):
            found = _numbers(rest, np.float64)
            if len(found) != num or not np.isfinite(found).all():
                raise DatasetError(f"{path}:{number}: {what}: no finite numbers in {rest[:60]!r}")
    return names, values.reshape(-1, num)


def _blocks(path: Path) -> Iterator[str]:
    """The file's text in whole lines, each ending in a newline."""
    rest = b""
    try:
        with path.open("rb") as file:
            while data := file.read(_BLOCK_BYTES):
                head, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    yield (head + newline).decode("latin1")
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file; it is part of the meta files") from None
    if rest.strip():
        yield rest.decode("latin1") + "\n"


def _name_bad_pair(path: Path, first_line: int, text: str) -> None:
    for number, line in enumerate(text.splitlines(), first_line):
        fields = line.split()
        whole = all(field.isascii() and field.isdigit() for field in fields)
        if len(fields) != 3 or not whole or fields[2] not in ("0", "1"):
            raise DatasetError(
                f"{path}:{number}: expected 'template template 0|1', found {line[:60]!r}"
            )
    raise DatasetError(f"{path}:{first_line}: no pairs of templates from this line on")


def _id(text: str) -> int:
    number = int(text)
    if abs(number) > _MAX_EXACT:
        raise ValueError(f"{text} is too large")
    return number


def _templates(path: Path, name: str) -> IjbTemplates:
    reader = csv.reader(_lines(path))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise DatasetError(f"{path}:{reader.line_num}: {error}; correct the line") from None
    header = ["".join(c for c in cell.lower() if c.isalpha()) for cell in rows[0]] if rows else []
    columns = [
        next((at for at, cell in enumerate(header) if cell in known), None)
        for known in (_TEMPLATE_COLUMNS, _SUBJECT_COLUMNS)
    ]
    if None in columns:
        raise DatasetError(
            f"{path}: columns {', '.join(rows[0]) if rows else 'none'}; expected one of template "
            "ids (TEMPLATE_ID) and one of subject ids (SUBJECT_ID)"
        )
    subjects: dict[int, int] = {}
    for number, row in enumerate(rows[1:], 2):
        try:
            template, subject = (_id(row[at]) for at in columns if at is not None)
        except (ValueError, IndexError):
            raise DatasetError(f"{path}:{number}: no template and subject id in it") from None
        if subjects.setdefault(template, subject) != subject:
            raise DatasetError(
                f"{path}:{number}: template {template} has subjects {subjects[template]} and "
                f"{subject}"
            )
    if not subjects:
        raise DatasetError(f"{path}: no lines under its header")
    return IjbTemplates(
        name,
        np.array(list(subjects), np.int64),
        np.array(list(subjects.values()), np.int64),
    )
