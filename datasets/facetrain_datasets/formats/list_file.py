"""Lists of images: CSV with the columns `path` and `label` or `identity`, or lines of old tools.

Without a header a line is `path label`, `path<TAB>label` or, as in `.lst` files of im2rec,
`index<TAB>label<TAB>path`. Paths are relative to the folder of the list. A label that is a whole
number is a class id, any other the identity's name.

A path may lead anywhere, but only to what an image is called: else a list from elsewhere could have
a private file copied, undecoded, into a set that is then passed on.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.class_labels import ClassLabels
from facetrain_datasets.formats.file_faces import FileFaces
from facetrain_datasets.formats.identity_names import NAMES_FILE
from facetrain_datasets.formats.image_folder import (
    IMAGE_SUFFIXES,
    FolderWriter,
    ImageFolder,
    is_image_name,
)
from facetrain_datasets.image_index import ImageIndex, Progress, open_index, replaced_file
from facetrain_datasets.packed_strings import StringPacker
from facetrain_datasets.whole_numbers import is_whole_number

LIST_FILE = "list.csv"
_REPORT_EVERY = 100_000
_MAX_HEADER_CHARACTERS = 10_000

Row = tuple[str, int | str]  # path, label


class ListedFaces(FileFaces):
    """A `FaceSource` over image files that a list names.

    Args:
        index: the list, its paths as names.
        folder: what the paths are relative to.
    """

    def __init__(self, index: ImageIndex, folder: Path) -> None:
        self.identities = index.identities
        self.labels = index.labels
        self._index = index
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._index, self._folder)

    def __len__(self) -> int:
        return len(self.labels)

    def _file(self, index: int) -> str:
        return os.path.join(self._folder, self._index.names[index])  # noqa: PTH118 (hot)

    def read(self, index: int) -> bytes:
        """The bytes of the file of image `index`; raises as `FileFaces.read` does."""
        # The list was checked, but the index may have come with it.
        if not is_image_name(self._index.names[index]):
            raise DatasetError(f"{self._file(index)}: no name of an image; remove the list's index")
        return super().read(index)


def open_list(path: Path, progress: Progress | None = None) -> ListedFaces:
    """The images of a list, in its order.

    Args:
        path: the list, or a folder with a `list.csv`.
        progress: called with (bytes read, bytes in all) while the index is built.

    Raises:
        DatasetError: no such list, or a line that cannot be used.
    """
    file = path / LIST_FILE if path.is_dir() else path
    if not file.is_file():
        raise DatasetError(f"{file}: no such file; give a list of images")
    names = file.with_name(NAMES_FILE)
    files = [file, names] if names.exists() else [file]
    index = open_index(file, "list", files, lambda: _build_index(file, progress))
    return ListedFaces(index, file.parent)


def _build_index(file: Path, progress: Progress | None) -> ImageIndex:
    labels, names = ClassLabels(), StringPacker()
    size = file.stat().st_size
    with (
        file.open("rb") as raw,
        io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="") as lines,
    ):
        for number, (path, label) in enumerate(_rows(file, lines), 1):
            labels.add(label, f"{file}: {path}")
            names.append(path)
            if number == 1 and not os.path.isfile(file.parent / path):  # noqa: PTH113 (never raises)
                raise DatasetError(
                    f"{file}: its first image, {file.parent / path}, does not exist; "
                    f"paths are relative to the folder of the list"
                )
            if progress is not None and number % _REPORT_EVERY == 0:
                progress(raw.tell(), size)
    class_ids, identities = labels.finish(file)
    return ImageIndex(identities=identities, labels=class_ids, names=names.pack())


def _rows(file: Path, lines: TextIO) -> Iterator[Row]:
    """The images of a list, whichever form it has.

    Raises:
        DatasetError: a line that cannot be used, by its number.
    """
    header = next(csv.reader([lines.readline(_MAX_HEADER_CHARACTERS)]), [])
    if "path" not in header:
        lines.seek(0)
        return _plain_rows(file, lines)
    column = next((name for name in ("identity", "label") if name in header), None)
    if column is None:
        raise DatasetError(
            f"{file}:1: columns {', '.join(header)}; expected path and label or identity"
        )
    return _csv_rows(file, lines, header, column)


def _csv_rows(file: Path, lines: TextIO, header: list[str], column: str) -> Iterator[Row]:
    at_path, at_label = header.index("path"), header.index(column)
    rows = csv.reader(lines)
    try:
        for row in rows:
            if len(row) != len(header):
                if not row:
                    continue
                raise _bad_line(file, rows.line_num + 1, ",".join(row), ",".join(header))
            path, label = row[at_path], row[at_label]
            if (column == "label" and not is_whole_number(label)) or not _is_path(path):
                raise _bad_line(file, rows.line_num + 1, ",".join(row), ",".join(header))
            _check_name(file, rows.line_num + 1, path)
            yield path, int(label) if column == "label" else label
    except csv.Error as error:
        raise DatasetError(f"{file}:{rows.line_num + 1}: {error}; correct the line") from None


def _plain_rows(file: Path, lines: TextIO) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _plain_row(line.strip("\r\n"))
        if row is None:
            forms = "path label, or index, label and path with tabs"
            if number == 1:
                forms += ", or a header with the columns path and label or identity"
            raise _bad_line(file, number, line, forms)
        _check_name(file, number, row[0])
        yield row


def _plain_row(line: str) -> Row | None:
    fields = line.split("\t") if "\t" in line else line.rsplit(maxsplit=1)
    if len(fields) < 2:
        return None
    # im2rec writes labels as floats, and several of them where an image has several.
    path, label = (fields[-1], fields[1]) if len(fields) > 2 else fields
    label = label.strip()
    if len(fields) > 2:
        label = re.sub(r"\.0*$", "", label)
    if not label or not _is_path(path):
        return None
    return path, int(label) if is_whole_number(label) else label


def _is_path(path: str) -> bool:
    return bool(path) and "\0" not in path


def _check_name(file: Path, number: int, path: str) -> None:
    if not is_image_name(path):
        raise DatasetError(
            f"{file}:{number}: {path[:80]!r} is no name of an image; allowed: "
            f"{' '.join(sorted(IMAGE_SUFFIXES))}; correct the line"
        )


def _bad_line(file: Path, number: int, line: str, expected: str) -> DatasetError:
    return DatasetError(
        f"{file}:{number}: expected {expected}, found {line.strip()[:80]!r}; correct the line"
    )


class ListWriter(FolderWriter):
    """Writes an image folder, and the list of it as `list.csv`; a `FaceWriter`."""

    def finish(self, position: int) -> None:
        """The list, sorted by identity."""
        faces = ImageFolder(self._folder)
        with replaced_file(self._folder / LIST_FILE) as file:
            text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(("path", "identity"))
            for index in range(len(faces)):
                path = faces.path(index).relative_to(self._folder)
                rows.writerow((path, path.parent))
            text.detach()
