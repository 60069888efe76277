"""A folder of images, one sub-folder per identity: `root/<identity>/<image>.jpg`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.file_faces import FileFaces
from facetrain_datasets.formats.writing import image_suffix
from facetrain_datasets.image_index import named_errors
from facetrain_datasets.packed_strings import PackedStrings, StringPacker

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".pgm", ".ppm"})


class ImageFolder(FileFaces):
    """The images under `root`; class ids and image indices follow the sorted names.

    Hidden entries, files beside the identity folders and files of other kinds
    (see `IMAGE_SUFFIXES`) are no images and take no part.

    Args:
        root: the folder that holds one folder per identity.
        exclude: names of identities to leave out, such as those of a test protocol.
        min_images: identities with fewer images are left out. An identity folder without any
            image is an error all the same: it is a mistake, not a choice.

    Attributes:
        root: as given.
        identities: name of each class, sorted.
        labels: int64 [num_images], the class id of each image, ascending.
        num_excluded: identity folders left out because `exclude` names them.
        num_too_small: identity folders left out because of `min_images`.

    Raises:
        DatasetError: no such folder, no identity in it, or an identity without images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        exclude: Collection[str] = frozenset(),
        min_images: int = 1,
    ) -> None:
        self.root = Path(root)
        if min_images < 1:
            raise DatasetError(f"min_images is {min_images}; allowed: 1 or more")
        excluded = frozenset(exclude)
        folders = _identity_folders(self.root)
        identities: list[str] = []
        counts: list[int] = []
        packer = StringPacker()
        self.num_excluded = 0
        self.num_too_small = 0
        for folder in folders:
            if folder in excluded:
                self.num_excluded += 1
                continue
            names = _image_names(self.root / folder)
            if not names:
                raise DatasetError(
                    f"{self.root / folder}: identity folder without images "
                    f"({', '.join(sorted(IMAGE_SUFFIXES))}); add images or remove the folder"
                )
            if len(names) < min_images:
                self.num_too_small += 1
                continue
            identities.append(folder)
            counts.append(len(names))
            for name in names:
                packer.append(name)
        if not identities:
            raise DatasetError(
                f"{self.root}: no identity left of {len(folders)} folders ({self.num_excluded} "
                f"excluded by name, {self.num_too_small} with fewer than {min_images} images); "
                f"exclude fewer or lower min_images"
            )
        self.identities = PackedStrings.of(identities)
        self._names = packer.pack()
        self.labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def __len__(self) -> int:
        return len(self._names)

    def _file(self, index: int) -> str:
        return f"{self.root}/{self.identities[self.labels.item(index)]}/{self._names[index]}"


def _identity_folders(root: Path) -> list[str]:
    if not root.exists():
        raise DatasetError(f"{root}: no such folder; give the folder with one folder per identity")
    if not root.is_dir():
        raise DatasetError(f"{root}: not a folder; give the folder with one folder per identity")
    with os.scandir(root) as entries:
        folders = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not folders:
        raise DatasetError(f"{root}: no identity in it; it must hold one folder per identity")
    return folders


def _image_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and is_image_name(entry.name) and entry.is_file()
        )


def is_image_name(name: str) -> bool:
    """Whether a file of this name is taken for an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122 (hot)


class FolderWriter:
    """Writes `folder/<identity>/<number>.jpg`; a `FaceWriter`.

    Raises:
        DatasetError: a name that is no folder's, or of two identities.
    """

    def __init__(self, folder: Path, identities: Sequence[str], labels: np.ndarray) -> None:
        self._folder = folder
        self._identities = identities
        self._labels = labels
        seen = set()
        for name in identities:
            if not name or name.startswith(".") or "/" in name or "\0" in name:
                raise DatasetError(f"identity {name!r}: not the name of a folder; rename it")
            if name in seen:
                raise DatasetError(f"identity {name!r}: the name of two identities; rename one")
            seen.add(name)

    def write(self, first: int, images: Iterable[bytes], position: int) -> int:
        """One file an image; see `FaceWriter`."""
        for number, image in enumerate(images, first):
            identity = self._folder / self._identities[self._labels.item(number)]
            identity.mkdir(exist_ok=True)
            file = identity / f"{number:09d}{image_suffix(image)}"
            with named_errors(file):
                file.write_bytes(image)
        return 0

    def finish(self, position: int) -> None:
        """Nothing more: the folder is the set."""
