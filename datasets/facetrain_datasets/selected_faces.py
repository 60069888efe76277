"""Part of a source: chosen images, or identities that are not excluded and have enough images."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.packed_strings import PackedStrings
from facetrain_datasets.source import FaceSource


class SelectedImages:
    """Some images of a source, in its order; classes without any are left out, the rest renumbered.

    Args:
        source: all images.
        images: int64, the indices kept, ascending.
    """

    def __init__(self, source: FaceSource, images: np.ndarray) -> None:
        kept, self.labels = np.unique(source.labels[images], return_inverse=True)
        self.identities = PackedStrings.of(source.identities[row] for row in kept.tolist())
        self._source = source
        self._images = images

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> bytes:
        """The encoded image."""
        return self._source.read(self._images.item(index))

    def describe(self, index: int) -> str:
        """As the source describes it."""
        return self._source.describe(self._images.item(index))


class SelectedFaces(SelectedImages):
    """The images of some identities of a source, in its order; the classes are numbered anew.

    Args:
        source: all images.
        identities: int64, the classes kept.
    """

    def __init__(self, source: FaceSource, identities: np.ndarray) -> None:
        super().__init__(source, np.flatnonzero(np.isin(source.labels, identities)))


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
    num_identities = len(source.identities)
    too_small = np.bincount(source.labels, minlength=num_identities) < min_images
    excluded = np.zeros(num_identities, dtype=bool)
    if exclude:
        names = frozenset(exclude)
        excluded[:] = [name in names for name in source.identities]
    kept = np.flatnonzero(~(too_small | excluded))
    if not kept.size:
        raise DatasetError(
            f"no identity left of {num_identities} ({excluded.sum()} excluded by name, "
            f"{too_small.sum()} with fewer than {min_images} images); "
            f"exclude fewer or lower min_images"
        )
    return SelectedFaces(source, kept)
