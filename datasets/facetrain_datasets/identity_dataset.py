"""A torch data set of labelled faces: decoded, transformed, and never stopped by one bad file.

Legend: B rows of this rank in one micro-batch, image size H x W.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from facetrain_datasets.decode import decode_face
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.source import FaceSource
from facetrain_datasets.transforms import Augmentation

#: (position in the stream, image)
Key = tuple[int, int]


@dataclass(frozen=True)
class FaceBatch:
    """What one rank gets in one micro-batch; B may be 0 when every image was skipped.

    Attributes:
        images: uint8 [B, 3, H, W] RGB in channels_last memory.
        labels: int64 [B], class ids.
        indices: int64 [B], where in the source each image lies.
        skipped: one line per image left out, naming the file and the reason.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    skipped: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def pin_memory(self) -> FaceBatch:
        """A copy in page-locked memory; the data loader calls it."""
        return FaceBatch(
            self.images.pin_memory(),
            self.labels.pin_memory(),
            self.indices.pin_memory(),
            self.skipped,
        )


class _Buffers:
    """Memory of batches, taken again when the tensors that used it are gone.

    The system gives fresh memory page by page and zeroed, which takes several times as long as
    copying an image into memory that is there.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """uint8 of any content; free again when this very object dies, whatever views there are."""
        while self._free:
            memory = self._free.pop()
            if memory.shape == shape:
                break
        else:
            memory = np.empty(shape, np.uint8)
        lent = memory.view()
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent


class IdentityDataset(Dataset[FaceBatch]):
    """The images of a source, in whole batches, addressed by (position in the stream, image).

    The position seeds the augmentation, so an image depends on nothing but (seed, position, image):
    not on the batch, the worker, the rank, or the number of any of them.

    Args:
        source: where the images come from.
        image_size: height and width expected, in pixels.
        allow_grey: whether single-channel images are taken, see `decode_face`.
        augmentation: random changes of each image; None for none.
        keep: indices into the source of the images to use, in this order; None for all. Image
            `i` of this data set is then image `keep[i]` of the source.

    Raises:
        DatasetError: `keep` is empty or names an image the source does not have.
    """

    def __init__(
        self,
        source: FaceSource,
        *,
        image_size: int,
        allow_grey: bool,
        augmentation: Augmentation | None = None,
        keep: np.ndarray | None = None,
    ) -> None:
        self.source = source
        self.image_size = image_size
        self._allow_grey = allow_grey
        self._augmentation = augmentation or Augmentation((), seed=0)
        self._buffers = _Buffers()
        self._keep = None if keep is None else np.asarray(keep, dtype=np.int64)
        if self._keep is not None:
            if self._keep.size == 0:
                raise DatasetError(f"no image of {len(source)} is kept; keep at least one")
            wrong = self._keep[(self._keep < 0) | (self._keep >= len(source))]
            if wrong.size:
                raise DatasetError(
                    f"keep names image {int(wrong[0])}; allowed: 0 .. {len(source) - 1}"
                )

    @property
    def labels(self) -> np.ndarray:
        """int64 [len(self)], the class id of each image kept."""
        return self.source.labels if self._keep is None else self.source.labels[self._keep]

    def __len__(self) -> int:
        return len(self.source) if self._keep is None else len(self._keep)

    def __getitems__(self, keys: Sequence[Key]) -> FaceBatch:
        """The batch of these keys, in their order; the data loader calls it."""
        size = self.image_size
        augmentation = self._augmentation
        images = self._buffers.take((len(keys), size, size, 3))
        indices: list[int] = []
        skipped: list[str] = []
        chosen = augmentation.choose([position for position, _ in keys])
        for (position, item), changes in zip(keys, chosen, strict=True):
            index = item if self._keep is None else int(self._keep[item])
            try:
                image = self._decode(index)
            except (DatasetError, OSError) as error:
                skipped.append(str(error))
                continue
            if changes:
                image = augmentation.apply(image, position, changes)
            images[len(indices)] = image
            indices.append(index)
        return FaceBatch(
            # The tensor keeps `images` itself alive, which a NumPy slice of it would not.
            images=torch.from_numpy(images)[: len(indices)].permute(0, 3, 1, 2),
            labels=torch.from_numpy(self.source.labels[np.array(indices, np.int64)]),
            indices=torch.tensor(indices, dtype=torch.int64),
            skipped=skipped,
        )

    def image(self, item: int) -> np.ndarray:
        """The decoded image, uint8 HWC RGB, without transform: what evaluation reads.

        Raises:
            DatasetError: it cannot be decoded.
            OSError: it cannot be read.
        """
        return self._decode(item if self._keep is None else int(self._keep[item]))

    def _decode(self, index: int) -> np.ndarray:
        data = self.source.read(index)
        try:
            return decode_face(data, self.image_size, self._allow_grey)
        except DatasetError as error:
            raise DatasetError(f"{self.source.describe(index)}: {error}") from None
