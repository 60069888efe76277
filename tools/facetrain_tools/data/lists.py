"""Lists for review: CSV files that a person reads, shortens, and gives back to be left out.

A list of images has the columns `index` and `image` (where the image lies, a check that the list
was made of this set), a list of identities the column `identity`. Further columns say why.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.report import write_atomically
from facetrain_datasets.source import FaceSource
from facetrain_datasets.whole_numbers import is_whole_number

#: The first columns of a list of images.
IMAGE_COLUMNS = ("index", "image", "identity")


def write_list(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a CSV file in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def image_cells(source: FaceSource, index: int) -> tuple[object, ...]:
    """What `IMAGE_COLUMNS` say of an image."""
    return index, source.describe(index), source.identities[source.labels.item(index)]


def listed_images(path: Path, source: FaceSource) -> np.ndarray:
    """bool [N], the images that a list names, or all of the identities that it names.

    Raises:
        FacetrainError: not such a list, or one of another set; the message names the line.
    """
    listed = np.zeros(len(source), dtype=bool)
    identities: set[str] = set()
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            of_images = {"index", "image"} <= columns
            if not of_images and "identity" not in columns:
                by_hand = (
                    "; identities that clean calls split or merged are joined or parted by hand"
                    if "first_identity" in columns
                    else ""
                )
                raise FacetrainError(
                    f"list {path}: expected the columns index and image, or identity; found "
                    f"{', '.join(reader.fieldnames or ()) or 'none'}{by_hand}"
                )
            for row in reader:
                if of_images:
                    where = f"list {path}:{reader.line_num}"
                    listed[_index(where, row["index"], row["image"], source)] = True
                else:
                    identities.add(row["identity"])
    except csv.Error as error:
        raise FacetrainError(f"list {path}: cannot be read ({error})") from error
    if identities:
        chosen = np.array([name in identities for name in source.identities], dtype=bool)
        unknown = identities.difference(source.identities)
        if unknown:
            raise FacetrainError(
                f"list {path}: identity {min(unknown)!r} is not in the data; give the list made of "
                "this set"
            )
        listed = chosen[source.labels]
    return listed


def _index(where: str, index: str | None, image: str | None, source: FaceSource) -> int:
    if index is None or not is_whole_number(index) or int(index) >= len(source):
        raise FacetrainError(
            f"{where}: index {index!r} is none of the {len(source)} images; give the list made of "
            "this set"
        )
    found = source.describe(int(index))
    if found != image:
        raise FacetrainError(
            f"{where}: image {index} is {found}, not {image}; give the list made of this set"
        )
    return int(index)
