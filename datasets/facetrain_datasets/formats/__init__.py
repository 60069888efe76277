"""Data sets on disk behind one call: `open_faces("faces.rec")`, `open_faces("faces/")`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.image_folder import FolderWriter, ImageFolder
from facetrain_datasets.formats.list_file import ListWriter, open_list
from facetrain_datasets.formats.parquet import ParquetWriter, open_parquet
from facetrain_datasets.formats.rec import RecWriter, open_rec
from facetrain_datasets.formats.tar import TarWriter, open_tar
from facetrain_datasets.formats.writing import FaceWriter
from facetrain_datasets.image_index import Progress
from facetrain_datasets.selected_faces import select_identities
from facetrain_datasets.source import FaceSource


@dataclass(frozen=True)
class Format:
    """A way to keep faces on disk.

    Attributes:
        open: the images at a path; progress is called with (done, in all) where that takes long.
        writer: makes a writer, see `FaceWriter`.
        suffixes: of its files; a path with one of them is of this format.
        is_in_folders: a folder that holds such files is of this format too.
        is_grouped: whether images are written grouped by identity.
    """

    open: Callable[[Path, Progress | None], FaceSource]
    writer: Callable[[Path, Sequence[str], np.ndarray], FaceWriter]
    suffixes: tuple[str, ...] = ()
    is_in_folders: bool = False
    is_grouped: bool = False


FORMATS = {
    "folder": Format(lambda path, _: ImageFolder(path), FolderWriter),
    "list": Format(open_list, ListWriter, (".csv", ".lst", ".tsv", ".txt")),
    "rec": Format(open_rec, RecWriter, (".rec", ".idx"), is_in_folders=True, is_grouped=True),
    "tar": Format(open_tar, TarWriter, (".tar", ".tgz", ".tar.gz"), is_in_folders=True),
    "parquet": Format(open_parquet, ParquetWriter, (".parquet",), is_in_folders=True),
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
        OSError: it cannot be read.
    """
    path = Path(path)
    name = recognise_format(path) if format == "auto" else format
    if name not in FORMATS:
        raise DatasetError(f"format {name!r}; known: auto, {', '.join(FORMATS)}")
    source = FORMATS[name].open(path, progress)
    return select_identities(source, min_images=min_images, exclude=exclude)


def recognise_format(path: Path) -> str:
    """The format of what is at `path`, by its name or what the folder holds.

    Raises:
        DatasetError: the folder holds several, or the file is of none by its name.
    """
    if not path.is_dir():
        name = format_of_name(path.name)
        if name is None and path.is_file():
            endings = " ".join(suffix for known in FORMATS.values() for suffix in known.suffixes)
            raise DatasetError(
                f"{path}: not a set of faces by its name; give a folder, a file that ends in "
                f"one of {endings}, or name its format"
            )
        return name or "folder"
    found = {name for file in path.iterdir() if (name := format_of_name(file.name)) is not None}
    found = {name for name in found if FORMATS[name].is_in_folders}
    if len(found) > 1:
        raise DatasetError(
            f"{path}: holds files of several formats ({', '.join(sorted(found))}); give a file"
        )
    return found.pop() if found else "folder"


def format_of_name(name: str) -> str | None:
    """The format of a file of this name."""
    return next((f for f, known in FORMATS.items() if name.lower().endswith(known.suffixes)), None)
