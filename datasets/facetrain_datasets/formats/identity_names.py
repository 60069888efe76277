"""`identities.txt`: the names of the classes, one a line, beside formats that keep only numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_index import replaced_file
from facetrain_datasets.packed_strings import PackedStrings

NAMES_FILE = "identities.txt"


def read_identity_names(folder: Path, num_classes: int) -> PackedStrings:
    """The names in `folder`; where it has none, the class ids with leading zeros.

    Raises:
        DatasetError: fewer names than classes.
        OSError: the file cannot be read.
    """
    file = folder / NAMES_FILE
    if not file.exists():
        return PackedStrings.numbered(num_classes)
    with file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        names = PackedStrings.of(line.rstrip("\r\n") for line in lines)
    if len(names) < num_classes:
        raise DatasetError(
            f"{file}: {len(names)} names for {num_classes} classes; "
            f"complete it, or remove it to name classes by number"
        )
    return names


def write_identity_names(folder: Path, names: Sequence[str]) -> None:
    """Writes them.

    Raises:
        DatasetError: a name with a line break in it.
    """
    with replaced_file(folder / NAMES_FILE) as file:
        for name in names:
            if "\n" in name or "\r" in name:
                raise DatasetError(f"identity {name!r}: a line break in a name; rename it")
            file.write(name.encode("utf-8", "surrogateescape") + b"\n")
