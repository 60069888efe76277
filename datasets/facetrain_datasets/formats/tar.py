"""Tar shards as WebDataset has them: `key.jpg` beside `key.cls`, `key.json` or `key.txt`.

`.cls` holds a class id, `.json` a "label", "identity" or "class", `.txt` the identity's name. In
shards without these an image belongs to the folder it lies in. Images are read in place, so the
shards must not be compressed. Nothing is ever extracted; all the same a member whose name leads out
of its folder is refused, since whoever made it meant harm.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.identity_names import NAMES_FILE, write_identity_names
from facetrain_datasets.formats.image_folder import IMAGE_SUFFIXES
from facetrain_datasets.formats.index_builder import IndexBuilder
from facetrain_datasets.formats.shards import shard_files
from facetrain_datasets.formats.tar_members import plain_members
from facetrain_datasets.formats.writing import image_suffix
from facetrain_datasets.image_index import ImageIndex, Progress, open_index, replaced_file
from facetrain_datasets.indexed_faces import IndexedFaces
from facetrain_datasets.whole_numbers import is_whole_number

_LABEL_SUFFIXES = (".cls", ".json", ".txt")
_LABEL_KEYS = ("label", "identity", "class")
_MAX_LABEL_BYTES = 1 << 20
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can spell it, no encoding write it


def open_tar(path: Path, progress: Progress | None = None) -> IndexedFaces:
    """The images of tar shards, in their order.

    Args:
        path: a folder of `.tar` files, one of them, or a pattern such as `faces-{000..012}.tar`.
        progress: called with (shards read, shards in all) while the index is built.

    Raises:
        DatasetError: no such file, or one that cannot be used.
    """
    shards = shard_files(path, ".tar")
    names = shards[0].with_name(NAMES_FILE)
    files = [*shards, names] if names.exists() else shards
    index = open_index(path, "tar", files, lambda: _build_index(shards, progress))
    return IndexedFaces(index, shards)


def _build_index(shards: Sequence[Path], progress: Progress | None) -> ImageIndex:
    builder = IndexBuilder(shards)
    labelled = None
    for number, shard in enumerate(shards):
        for image, label in _samples(shard):
            where = f"{shard}: {image.name}"
            labelled = (label is not None) if labelled is None else labelled
            if labelled != (label is not None):
                raise DatasetError(
                    f"{where}: {'no' if labelled else 'a'} label beside it, unlike the images "
                    f"before it; label all images of the set or none"
                )
            label = _folder(image, where) if label is None else label
            builder.add(number, image.name, label, image.offset_data, image.size)
        if progress is not None:
            progress(number + 1, len(shards))
    return builder.finish()


def _samples(shard: Path) -> Iterator[tuple[tarfile.TarInfo, int | str | None]]:
    """Each image of a shard, and the label that lies beside it, if any."""
    with shard.open("rb") as file:
        members = plain_members(shard, file)
        for key, group in itertools.groupby(members, lambda member: _split(member.name)[0]):
            sample = [(_split(member.name)[1], member) for member in group]
            images = [member for suffix, member in sample if suffix in IMAGE_SUFFIXES]
            beside = dict(sample)
            if len(images) > 1:
                raise DatasetError(f"{shard}: {key}: several images of one name; rename them")
            if images:
                yield images[0], _label(shard, file, beside)
            elif ".cls" in beside:
                raise DatasetError(
                    f"{shard}: {key}.cls: a label without its image beside it; "
                    f"write the shard anew with its members sorted by name"
                )


def _split(name: str) -> tuple[str, str]:
    key, dot, suffix = name.rpartition(".")
    return key, dot + suffix.lower()


def _label(shard: Path, file: BinaryIO, beside: Mapping[str, tarfile.TarInfo]) -> int | str | None:
    suffix = next((suffix for suffix in _LABEL_SUFFIXES if suffix in beside), None)
    if suffix is None:
        return None
    member = beside[suffix]
    where = f"{shard}: {member.name}"
    if member.size > _MAX_LABEL_BYTES:
        raise DatasetError(f"{where}: {member.size} bytes for a label; restore the shard")
    file.seek(member.offset_data)
    text = file.read(member.size).decode("utf-8", "surrogateescape").strip()
    if suffix == ".txt":
        return text
    return _number(text, where) if suffix == ".cls" else _label_of_json(text, where)


def _number(text: str, where: str) -> int:
    if not is_whole_number(text):
        raise DatasetError(f"{where}: expected a class id, found {text[:40]!r}; correct it")
    return int(text)


def _label_of_json(text: str, where: str) -> int | str:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        for key in _LABEL_KEYS:
            value = fields.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, str) and not _LONE_SURROGATE.search(value):
                return value
    raise DatasetError(
        f"{where}: no {' or '.join(_LABEL_KEYS)} in it that is a whole number or a name; add one"
    )


def _folder(image: tarfile.TarInfo, where: str) -> str:
    folder = PurePosixPath(image.name).parent.name
    if not folder:
        raise DatasetError(
            f"{where}: an image with neither a label nor a folder, so of nobody; "
            f"add a .cls beside it or put it into a folder named after its identity"
        )
    return folder


class TarWriter:
    """Writes shards `000000.tar ...` of `<number>.cls` and `<number>.jpg`; a `FaceWriter`.

    Class ids go into the shards, the names of the classes beside them.
    """

    def __init__(self, folder: Path, identities: Sequence[str], labels: np.ndarray) -> None:
        self._folder = folder
        self._identities = identities
        self._labels = labels

    def write(self, first: int, images: Iterable[bytes], position: int) -> int:
        """A shard; `position` is its number. See `FaceWriter`."""
        with (
            replaced_file(self._folder / f"{position:06d}.tar") as file,
            tarfile.TarFile(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for number, image in enumerate(images, first):
                label = str(self._labels.item(number)).encode()
                for suffix, content in ((".cls", label), (image_suffix(image), image)):
                    member = tarfile.TarInfo(f"{number:09d}{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                archive.members.clear()  # type: ignore[attr-defined]
        return position + 1

    def finish(self, position: int) -> None:
        """The names of the classes."""
        write_identity_names(self._folder, self._identities)
