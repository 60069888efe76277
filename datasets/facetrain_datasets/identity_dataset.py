"""A torch data set of labelled faces: decoded, transformed, and never stopped by one bad file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

from facetrain_datasets.decode import decode_image
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.source import FaceSource

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Sample:
    """One image: uint8 HWC RGB, its class id, and its index in the source."""

    image: np.ndarray
    label: int
    index: int


@dataclass(frozen=True)
class SkippedImage:
    """An image that could not be used in mid-training: its index in the source, and why."""

    index: int
    reason: str


class IdentityDataset(Dataset[Sample | SkippedImage]):
    """The images of a source, addressed by (position in the stream, image).

    The position seeds the transform, so a sample depends on nothing but (seed, position, image):
    not on the worker, the rank, or the number of either.

    Args:
        source: where the images come from.
        image_size: height and width expected, in pixels.
        allow_grey: whether single-channel images are taken, see `decode_image`.
        transform: applied to each image (uint8 HWC RGB, generator); None for none.
        seed: non-negative.
        keep: indices into the source of the images to use, in this order; None for all. Image
            `i` of this data set is then image `keep[i]` of the source.

    Attributes:
        labels: int64 [len(self)], the class id of each image kept.

    Raises:
        DatasetError: `keep` is empty or names an image the source does not have.
    """

    def __init__(
        self,
        source: FaceSource,
        *,
        image_size: int,
        allow_grey: bool,
        transform: Transform | None,
        seed: int,
        keep: np.ndarray | None = None,
    ) -> None:
        self.source = source
        self.image_size = image_size
        self._allow_grey = allow_grey
        self._transform = transform
        self._seed = seed
        self._keep = None if keep is None else np.asarray(keep, dtype=np.int64)
        if self._keep is not None:
            if self._keep.size == 0:
                raise DatasetError(f"no image of {len(source)} is kept; keep at least one")
            wrong = self._keep[(self._keep < 0) | (self._keep >= len(source))]
            if wrong.size:
                raise DatasetError(
                    f"keep names image {int(wrong[0])}; allowed: 0 .. {len(source) - 1}"
                )
        self.labels = source.labels if self._keep is None else source.labels[self._keep]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: tuple[int, int]) -> Sample | SkippedImage:
        position, item = key
        index = self._source_index(item)
        try:
            image = self._decode(index)
        except (DatasetError, OSError) as error:
            return SkippedImage(index, str(error))
        if self._transform is not None:
            image = self._transform(image, np.random.default_rng((self._seed, position)))
        return Sample(image, int(self.labels[item]), index)

    def image(self, item: int) -> np.ndarray:
        """The decoded image, uint8 HWC RGB, without transform: what evaluation reads.

        Raises:
            DatasetError: it cannot be decoded.
            OSError: it cannot be read.
        """
        return self._decode(self._source_index(item))

    def _source_index(self, item: int) -> int:
        return item if self._keep is None else int(self._keep[item])

    def _decode(self, index: int) -> np.ndarray:
        where = self.source.describe(index)
        return decode_image(self.source.read(index), where, self.image_size, self._allow_grey)
