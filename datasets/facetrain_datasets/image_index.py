"""Where each image of a data set lies: built once, kept in a file, mapped into memory by all.

    index = open_index(Path("train.rec"), "rec", [Path("train.rec")], build)

It lies beside a data file as `NAME.index`, in a data folder as `FORMAT.index`, or, where that
cannot be written, in `~/.cache/facetrain/index` (`XDG_CACHE_HOME`). It is a line of JSON (version,
format, fingerprint of the data files, dtype and size of each array) and then the arrays, each at a
multiple of 64 bytes. A whole file replaces a stale or damaged one in one step, so any number of
processes may build it at once; processes and workers share its pages and pass on only its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.packed_strings import PackedStrings

# Raised with every change of what an index holds or how a format is read.
VERSION = 1
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 1 << 30

# Whatever a damaged file brings about: the index is then built anew.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)

Progress = Callable[[int, int], None]
Fingerprint = dict[str, object]


def _none() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class ImageIndex:
    """The images of a data set, as arrays that may be mapped from a file.

    Attributes:
        identities: name of each class.
        labels: int64 [num_images], class ids.
        names: what each image is called in its file, for messages.
        offsets: int64 [num_images], first byte of the image in its file.
        lengths: int64 [num_images], bytes; negative where the range is no image as it stands
            but has to be put together by the format.
        shards: int32 [num_images], which of the data files; empty where there is but one.
        note: what a user should know about this data set, or nothing.
        location: the file the arrays are mapped from.
    """

    identities: PackedStrings
    labels: np.ndarray
    names: PackedStrings
    offsets: np.ndarray = field(default_factory=_none)
    lengths: np.ndarray = field(default_factory=_none)
    shards: np.ndarray = field(default_factory=_none)
    note: str = ""
    location: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as the name of its file: no worker is sent the arrays."""
        assert self.location is not None, "only an index in a file is passed to other processes"
        return _load, (self.location,)


def open_index(
    path: Path,
    format_name: str,
    data_files: Sequence[Path],
    build: Callable[[], ImageIndex],
) -> ImageIndex:
    """The index of the data set at `path`: from its file, or built and written there first.

    Args:
        path: the data, a file or a folder.
        format_name: name of the format.
        data_files: every file the index depends on; another size or time makes it stale.
        build: reads the data and makes the index.

    Raises:
        DatasetError: `build` found bad data, or the index can be written nowhere.
        OSError: a data file cannot be read.
    """
    fingerprint = _fingerprint(format_name, data_files)
    places = _places(path, format_name)
    for place in places:
        with contextlib.suppress(*_DAMAGED):
            return _load(place, fingerprint)
    index = build()
    if fingerprint != _fingerprint(format_name, data_files):
        raise DatasetError(f"{path}: changed while it was read; wait until it is complete")
    problems = []
    for place in places:
        try:
            _write(place, index, fingerprint)
            return _load(place)
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
    raise DatasetError(
        f"{path}: its index can be written nowhere ({'; '.join(problems)}); "
        f"free some space or set XDG_CACHE_HOME to a folder that can be written"
    )


def _fingerprint(format_name: str, files: Sequence[Path]) -> Fingerprint:
    stats = [(file.name, file.stat()) for file in files]
    return {
        "version": VERSION,
        "format": format_name,
        "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
    }


def _places(path: Path, format_name: str) -> list[Path]:
    path = path.absolute()
    beside = path / f"{format_name}.index" if path.is_dir() else Path(f"{path}.index")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return [beside, cache / "facetrain" / "index" / f"{digest}.index"]


def _arrays(index: ImageIndex) -> dict[str, np.ndarray]:
    return {
        "labels": index.labels,
        "offsets": index.offsets,
        "lengths": index.lengths,
        "shards": index.shards,
        "names": index.names.data,
        "name_ends": index.names.ends,
        "identities": index.identities.data,
        "identity_ends": index.identities.ends,
    }


def _write(location: Path, index: ImageIndex, fingerprint: Fingerprint) -> None:
    location.parent.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(index)
    header = {
        "fingerprint": fingerprint,
        "note": index.note,
        "arrays": {name: [array.dtype.str, array.size] for name, array in arrays.items()},
    }
    with replaced_file(location) as file:
        file.write(json.dumps(header).encode() + b"\n")
        for array in arrays.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(np.ascontiguousarray(array).data)


def _load(location: Path, fingerprint: Fingerprint | None = None) -> ImageIndex:
    """Maps the index.

    Raises:
        OSError: no such file.
        ValueError: no index, a damaged one, or one of another fingerprint.
    """
    if not location.is_file():  # a pipe would wait for ever
        raise FileNotFoundError(f"{location}: no file")
    with location.open("rb") as file:
        header = json.loads(file.readline(_MAX_HEADER_BYTES))
        position = file.tell()
    if fingerprint is not None and header["fingerprint"] != fingerprint:
        raise ValueError(f"{location}: stale")
    pages = np.memmap(location, np.uint8, "r").view(np.ndarray)
    arrays = {}
    for name, (dtype, size) in header["arrays"].items():
        start = position + -position % _ALIGNMENT
        position = start + np.dtype(dtype).itemsize * size
        if position > len(pages):
            raise ValueError(f"{location}: cut")
        arrays[name] = pages[start:position].view(dtype)
    index = ImageIndex(
        identities=PackedStrings(arrays["identities"], arrays["identity_ends"]),
        labels=arrays["labels"],
        names=PackedStrings(arrays["names"], arrays["name_ends"]),
        offsets=arrays["offsets"],
        lengths=arrays["lengths"],
        shards=arrays["shards"],
        note=header["note"],
        location=location,
    )
    if fingerprint is not None:  # else it was checked by who passed it on
        _check(index, len(header["fingerprint"]["files"]))
    return index


def _check(index: ImageIndex, num_files: int) -> None:
    """Whether the arrays go together; an index may come with data from elsewhere.

    Names and places are not looked through: wrong ones are noticed when an image is read.

    Raises:
        ValueError: they do not.
    """
    labels, names, identities, shards = index.labels, index.names, index.identities, index.shards
    per_image = (index.offsets, index.lengths, shards)
    integers = (labels, index.offsets, index.lengths, names.ends, identities.ends)
    if not (
        all(array.dtype == np.int64 for array in integers)
        and (shards.dtype == np.int32 or not shards.size)
        and len(labels) == len(names) > 0
        and all(array.size in (0, len(labels)) for array in per_image)
        and len(index.offsets) == len(index.lengths)
        and 0 <= labels.min() <= labels.max() < len(identities)
        and (not shards.size or 0 <= shards.min() <= shards.max() < num_files)
        and all(strings.ends[-1] == len(strings.data) for strings in (names, identities))
    ):
        raise ValueError(f"{index.location}: damaged")


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Gives `path` to errors of the system that name no file, as of a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` when complete and vanishes on an error."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    part = Path(name)
    try:
        with named_errors(path), os.fdopen(handle, "wb") as file:
            yield file
        part.chmod(0o644)  # mkstemp's 0o600 would hide it from other users
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
