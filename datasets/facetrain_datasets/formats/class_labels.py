"""The label of each image, a class id or an identity's name, gathered while a set is read."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.identity_names import read_identity_names
from facetrain_datasets.packed_strings import PackedStrings

# Beyond it the ids are something else than numbers of classes, and each of them costs memory.
_MAX_CLASSES = 1 << 22
_MAX_CLASSES_PER_IMAGE = 64


class ClassLabels:
    """Labels in the order they are added: all of them numbers, or all of them names."""

    def __init__(self) -> None:
        self._labels = array("q")
        self._names: dict[str, int] = {}

    def add(self, label: int | str, where: str) -> None:
        """Takes the label of the next image; `where` says in messages whose it is.

        Raises:
            DatasetError: a negative number, or a name among numbers.
        """
        if isinstance(label, str):
            if self._labels and not self._names:
                raise self._mixed(label, where)
            label = self._names.setdefault(label, len(self._names))
        elif self._names:
            raise self._mixed(label, where)
        elif not 0 <= label < 1 << 63:
            raise DatasetError(f"{where}: label {label}; allowed: class ids from 0")
        self._labels.append(label)

    def _mixed(self, label: int | str, where: str) -> DatasetError:
        others = "names" if self._names else "numbers"
        return DatasetError(
            f"{where}: label {label!r} where those before are {others}; "
            f"label all images by number or all by name"
        )

    def finish(self, data: Path) -> tuple[np.ndarray, PackedStrings]:
        """int64 class ids, and the name of each class.

        Names are numbered as they sort; numbers are named by the file beside `data`, if any.

        Raises:
            DatasetError: no image, class ids too far apart, or fewer names than classes.
        """
        labels = np.frombuffer(self._labels, np.int64)
        if not len(labels):
            raise DatasetError(f"{data}: no image in it; give a set of labelled faces")
        if not self._names:
            num_classes = int(labels.max()) + 1
            check_num_classes(data, num_classes, len(labels))
            return labels, read_identity_names(data.parent, num_classes)
        names = sorted(self._names)
        renumbered = np.empty(len(names), np.int64)
        renumbered[[self._names[name] for name in names]] = np.arange(len(names))
        return renumbered[labels], PackedStrings.of(names)


def check_num_classes(data: Path, num_classes: int, num_images: int) -> None:
    """Refuses class ids so far apart that naming all classes would take more than the images.

    Raises:
        DatasetError: it does.
    """
    if num_classes > max(_MAX_CLASSES, _MAX_CLASSES_PER_IMAGE * num_images):
        raise DatasetError(
            f"{data}: class ids up to {num_classes - 1} for {num_images} images; "
            f"number the classes from 0 without gaps, or give identities by name"
        )
