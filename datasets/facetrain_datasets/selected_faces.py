"""Part of a source: the identities that a protocol does not name and that have enough images."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.packed_strings import PackedStrings
from facetrain_datasets.source import FaceSource


class SelectedFaces:
    """The images of some identities of a source, in its order; the classes are numbered anew.

    Args:
        source: all images.
        identities: int64, the classes kept, ascending.
    """

    def __init__(self, source: FaceSource, identities: np.ndarray) -> None:
        renumbered = np.full(len(source.identities), -1, np.int64)
        renumbered[identities] = np.arange(len(identities))
        labels = renumbered[source.labels]
        self.identities = PackedStrings.of(source.identities[row] for row in identities.tolist())
        self.labels = labels[labels >= 0]
        self._source = source
        self._images = np.flatnonzero(labels >= 0)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> bytes:
        """The encoded image."""
        return self._source.read(self._images.item(index))

    def describe(self, index: int) -> str:
        """As the source describes it."""
        return self._source.describe(self._images.item(index))


def select_identities(
    source: FaceSource, *, min_images: int = 1, exclude: Collection[str] = ()
) -> FaceSource:
    """The source without the identities named in `exclude` or with fewer than `min_images` images.

    Raises:
        DatasetError: none is left.
    """
    if min_images < 1:
        raise DatasetError(f"min_images is {min_images}; allowed: 1 or more")
    if min_images == 1 and not exclude:
        return source
    names = frozenset(exclude)
    too_small = np.bincount(source.labels, minlength=len(source.identities)) < min_images
    excluded = np.array([name in names for name in source.identities], dtype=bool)
    kept = np.flatnonzero(~(too_small | excluded))
    if not kept.size:
        raise DatasetError(
            f"no identity left of {len(excluded)} ({excluded.sum()} excluded by name, "
            f"{too_small.sum()} with fewer than {min_images} images); "
            f"exclude fewer or lower min_images"
        )
    return SelectedFaces(source, kept)
