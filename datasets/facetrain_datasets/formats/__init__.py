"""Data sets on disk behind one call: `open_faces("faces.rec")`, `open_faces("photos/")`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.image_folder import ImageFolder
from facetrain_datasets.formats.rec import open_rec
from facetrain_datasets.image_index import Progress
from facetrain_datasets.selected_faces import select_identities
from facetrain_datasets.source import FaceSource


@dataclass(frozen=True)
class Format:
    """A way to keep faces on disk.

    Attributes:
        open: the images at a path; progress is called with (done, in all) where that takes long.
        suffixes: of its files, by which a path is recognised.
    """

    open: Callable[[Path, Progress | None], FaceSource]
    suffixes: tuple[str, ...] = ()


FORMATS = {
    "folder": Format(lambda path, _: ImageFolder(path)),
    "rec": Format(open_rec, (".rec", ".idx")),
}


def open_faces(
    path: str | os.PathLike[str],
    format: str = "auto",
    *,
    min_images: int = 1,
    exclude: Collection[str] = (),
    progress: Progress | None = None,
) -> FaceSource:
    """The faces at `path`, in whatever format they are.

    Args:
        path: a folder or a file.
        format: a name in `FORMATS`, or "auto" to go by the path and what a folder holds.
        min_images: identities with fewer images are left out.
        exclude: names of identities to leave out, such as those of a test protocol.
        progress: called with (done, in all) while an index is built.

    Raises:
        DatasetError: no such data, of no known format, damaged, or nothing of it left.
    """
    path = Path(path)
    name = _recognise(path) if format == "auto" else format
    if name not in FORMATS:
        raise DatasetError(f"format {name!r}; known: auto, {', '.join(FORMATS)}")
    return select_identities(
        FORMATS[name].open(path, progress), min_images=min_images, exclude=exclude
    )


def _recognise(path: Path) -> str:
    if not path.is_dir():
        return _of_suffix(path) or "folder"
    found = {name for file in path.iterdir() if (name := _of_suffix(file))}
    if len(found) > 1:
        raise DatasetError(
            f"{path}: holds files of several formats ({', '.join(sorted(found))}); "
            f"say which one, or give a file"
        )
    return found.pop() if found else "folder"


def _of_suffix(file: Path) -> str | None:
    suffix = file.suffix.lower()
    return next((name for name, known in FORMATS.items() if suffix in known.suffixes), None)
