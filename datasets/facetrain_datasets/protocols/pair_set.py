"""Pairs of images to verify, whatever file they were listed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.file_bytes import read_image_file


@dataclass(frozen=True, eq=False)
class PairSet:
    """Pairs as rows of a list of images, each image once; the pairs are in the file's order.

    Attributes:
        path: the file that lists them.
        names: of the images, as the file has them.
        left: int64 [num_pairs], rows.
        right: int64 [num_pairs], rows.
        is_same: bool [num_pairs], whether both are of one identity.
        num_folds: the pairs are this many folds, one after another; 1 where the file has none.
        identities: int64 [num_images], or None where the file does not tell.
        encoded: the images themselves, where the file holds them.
        root: the folder that `names` start from, where it is known.
    """

    path: Path
    names: Sequence[str]
    left: np.ndarray
    right: np.ndarray
    is_same: np.ndarray
    num_folds: int = 1
    identities: np.ndarray | None = None
    encoded: Sequence[bytes] | None = None
    root: Path | None = None

    def __len__(self) -> int:
        return len(self.is_same)

    def read(self, row: int) -> bytes:
        """The encoded image of a row.

        Raises:
            DatasetError: the file holds no images, and no folder with this one was given.
        """
        if self.encoded is not None:
            return self.encoded[row]
        if self.root is None:
            raise DatasetError(
                f"{self.path}: names {self.names[row]}, but no folder of images was given; give "
                "the folder, or precomputed features"
            )
        try:
            return read_image_file(str(self.root / self.names[row]))
        except FileNotFoundError:
            raise DatasetError(
                f"{self.path}: {self.root / self.names[row]} does not exist; give the folder of "
                "the images this list was made for"
            ) from None

    def describe(self, row: int) -> str:
        """Where the image lies, for messages."""
        if self.root is None:
            return f"{self.path}: {self.names[row]}"
        return str(self.root / self.names[row])

    def images(self, *, image_size: int = 112, allow_grey: bool = False) -> DecodedImages:
        """The images, decoded when asked for."""
        return DecodedImages(self.read, self.describe, len(self.names), image_size, allow_grey)


def identities_by_folder(
    names: Sequence[str], left: np.ndarray, right: np.ndarray, is_same: np.ndarray
) -> np.ndarray | None:
    """Identity int64 of each image by its parent folder, where that agrees with every pair."""
    folders = [str(PurePosixPath(name.replace("\\", "/")).parent) for name in names]
    _, identities = np.unique(np.array(folders), return_inverse=True)
    agrees = (identities[left] == identities[right]) == is_same
    return identities.astype(np.int64) if agrees.all() else None
