"""LFW pair lists: `pairs.txt` (view 2, ten folds) and `pairsDevTrain.txt`, `pairsDevTest.txt`.

The first line is `10<TAB>300` (folds, pairs of each kind per fold) or a single count (one fold of
so many pairs of each kind). A line of three fields, `name i j`, is a pair of the same person; one
of four, `name1 i name2 j`, of two. Image i of a person is `name/name_%04d.jpg`.
G. Huang et al., "Labeled Faces in the Wild", 2007.

    pairs = read_lfw_pairs("pairs.txt").resolve("lfw112")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.pair_set import PairSet
from facetrain_datasets.whole_numbers import is_whole_number


@dataclass(frozen=True)
class Pair:
    """Two images, each a person and a number, and the line of the list that names them."""

    left_name: str
    left_number: int
    right_name: str
    right_number: int
    line: int

    @property
    def is_same(self) -> bool:
        """Whether both are of the same person."""
        return self.left_name == self.right_name


@dataclass(frozen=True)
class PairList:
    """The pairs of one file, in its order; `num_folds` is 1 where the header gives one count."""

    path: Path
    pairs: tuple[Pair, ...]
    num_folds: int

    def identities(self) -> frozenset[str]:
        """Every person named: who must not be trained on before this list is used."""
        return frozenset(name for pair in self.pairs for name in (pair.left_name, pair.right_name))

    def resolve(self, root: str | os.PathLike[str] | None) -> PairSet:
        """The pairs as rows of their images under `root`; without one, images cannot be read.

        Raises:
            DatasetError: no such folder, or a pair names a file that does not exist.
        """
        folder = None if root is None else Path(root)
        if folder is not None and not folder.is_dir():
            raise DatasetError(f"{folder}: no such folder; give the folder of the LFW images")
        rows: dict[str, int] = {}

        def row(name: str, number: int, line: int) -> int:
            file = f"{name}/{name}_{number:04d}.jpg"
            if file not in rows and folder is not None and not (folder / file).is_file():
                raise DatasetError(
                    f"{self.path}:{line}: {folder / file} does not exist; "
                    f"give the folder of the images this list was made for"
                )
            return rows.setdefault(file, len(rows))

        ends = [
            (
                row(pair.left_name, pair.left_number, pair.line),
                row(pair.right_name, pair.right_number, pair.line),
            )
            for pair in self.pairs
        ]
        names = list(rows)
        _, identities = np.unique([name.partition("/")[0] for name in names], return_inverse=True)
        return PairSet(
            path=self.path,
            names=names,
            left=np.array([left for left, _ in ends], dtype=np.int64),
            right=np.array([right for _, right in ends], dtype=np.int64),
            is_same=np.array([pair.is_same for pair in self.pairs], dtype=bool),
            num_folds=self.num_folds,
            identities=identities.astype(np.int64),
            root=folder,
        )


def read_lfw_pairs(path: str | os.PathLike[str]) -> PairList:
    """Reads a pair list and checks it against its own header.

    Raises:
        DatasetError: no such file, a line that is no pair, or other numbers of pairs than the
            header promises; the message names file and line.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DatasetError(f"{file}: no such file; give an LFW pair list") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file}: not a readable LFW pair list ({error})") from None
    num_folds, pairs_of_kind = _header(file, lines)
    body = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    expected = num_folds * 2 * pairs_of_kind
    if len(body) != expected:
        raise DatasetError(
            f"{file}:1: the header promises {expected} pairs ({num_folds} folds of "
            f"{pairs_of_kind} of each kind), the file has {len(body)}; restore the whole file"
        )
    pairs = tuple(_pair(file, number, line) for number, line in body)
    for fold in range(num_folds):
        of_fold = pairs[fold * 2 * pairs_of_kind : (fold + 1) * 2 * pairs_of_kind]
        num_same = sum(pair.is_same for pair in of_fold)
        if num_same != pairs_of_kind:
            raise DatasetError(
                f"{file}:{of_fold[0].line}: fold {fold + 1} starts here and has {num_same} pairs "
                f"of the same person, expected {pairs_of_kind}; restore the original order"
            )
    return PairList(file, pairs, num_folds)


def _header(file: Path, lines: list[str]) -> tuple[int, int]:
    fields = lines[0].split() if lines else []
    numbers = [int(field) for field in fields if _is_count(field)]
    if len(numbers) != len(fields) or len(numbers) not in (1, 2):
        found = repr(lines[0]) if lines else "an empty file"
        raise DatasetError(
            f"{file}:1: expected '<folds> <pairs>' or '<pairs>', found {found}; "
            f"give an LFW pair list"
        )
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, numbers[0])


def _pair(file: Path, number: int, line: str) -> Pair:
    fields = line.split()
    if len(fields) == 3 and _is_count(fields[1]) and _is_count(fields[2]):
        return Pair(fields[0], int(fields[1]), fields[0], int(fields[2]), number)
    if len(fields) == 4 and _is_count(fields[1]) and _is_count(fields[3]):
        if fields[0] == fields[2]:
            raise DatasetError(
                f"{file}:{number}: {line.strip()!r} names {fields[0]} twice; "
                f"write a pair of one person as 'name i j'"
            )
        return Pair(fields[0], int(fields[1]), fields[2], int(fields[3]), number)
    raise DatasetError(
        f"{file}:{number}: expected 'name i j' or 'name1 i name2 j', found {line.strip()!r}; "
        f"correct the line"
    )


def _is_count(field: str) -> bool:
    """Whether `field` is a whole number of 1 or more in plain digits."""
    return is_whole_number(field) and int(field) >= 1
