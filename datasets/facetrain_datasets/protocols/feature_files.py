"""Precomputed embeddings in files: NumPy's .npy and .npz, and MegaFace's .bin.

- `.npy`: one array [N, D]. It is memory-mapped, so that parts of a large file can be read.
- `.npz`: an array `embeddings` (or `features`) [N, D], and where they are known `names` [N] of the
  images and `identities` (or `labels`) [N].
- `.bin`: int32 (N, 1, 4, 5), then N float32: one embedding. A folder of them, at any depth, is the
  embeddings in the order of their paths; a file's parent folder is its identity.
- a folder of .npy files: these one after another, by name.

    features = read_features("facescrub_features")
    features.rows(0, 1000)
"""

from __future__ import annotations

import os
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.file_bytes import read_image_file

_MEGAFACE_HEADER = struct.Struct("<4i")
_FLOAT_MATRIX = (1, 4, 5)  # columns, bytes of an element, OpenCV's number for 32-bit floats
_SUFFIXES = (".npy", ".npz", ".bin")
#: What NumPy and zipfile raise of files that are damaged.
#: What an .npz holds, and the names it may have there.
_ARRAYS = {
    "embeddings": ("embeddings", "features"),
    "names": ("names",),
    "identities": ("identities", "labels"),
}
_HARMLESS_BYTES = 1 << 26
_MAX_COMPRESSION = 100  # that of embeddings is hardly 1, of names with their padding some 25


@dataclass(frozen=True)
class _Part:
    """Rows of one file: how many, and how to read some."""

    num_rows: int
    read: Callable[[int, int], np.ndarray]


@dataclass(frozen=True, eq=False)
class Features:
    """Embeddings [N, D] in files, read by rows when asked for.

    Attributes:
        path: as given.
        size: D.
        names: of the images, where the files have them.
        identities: of the images, where the files have them.
    """

    path: Path
    size: int
    parts: Sequence[_Part]
    names: Sequence[str] | None = None
    identities: Sequence[str] | None = None

    def __len__(self) -> int:
        return sum(part.num_rows for part in self.parts)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start .. stop - 1, float32 [rows, D].

        Raises:
            DatasetError: a file changed or cannot be read.
        """
        found = [np.empty((0, self.size), np.float32)]
        first = 0
        for part in self.parts:
            begin, end = max(start - first, 0), min(stop - first, part.num_rows)
            if begin < end:
                with np.errstate(over="ignore"):  # infinite then, which whoever uses it refuses
                    found.append(part.read(begin, end).astype(np.float32, copy=False))
            first += part.num_rows
        return np.concatenate(found) if len(found) != 2 else found[1]

    def blocks(self, rows_per_block: int) -> Iterator[np.ndarray]:
        """All rows in order, so many at a time."""
        for start in range(0, len(self), rows_per_block):
            yield self.rows(start, min(start + rows_per_block, len(self)))

    @property
    def embeddings(self) -> np.ndarray:
        """All rows, float32 [N, D]."""
        return self.rows(0, len(self))


def is_feature_path(path: str | os.PathLike[str]) -> bool:
    """Whether `read_features` is for this path, by its suffix or by the files in the folder."""
    path = Path(path)
    if not path.is_dir():
        return path.suffix in _SUFFIXES
    return any(_files(path, ".npy", deep=False)) or any(_files(path, ".bin", deep=True))


def read_features(path: str | os.PathLike[str]) -> Features:
    """Opens a file or folder of embeddings.

    Raises:
        DatasetError: absent, unreadable, of another form, or without rows.
    """
    path = Path(path)
    if path.is_dir():
        features = _read_folder(path)
    elif not path.is_file():
        raise DatasetError(f"features {path}: no such file; check the path")
    elif path.suffix == ".npy":
        part, size = _npy_part(path)
        features = Features(path, size, [part])
    elif path.suffix == ".npz":
        features = _read_npz(path)
    elif path.suffix == ".bin":
        size = len(read_megaface_file(path))
        features = _megaface_features(path, [path], size)
    else:
        raise DatasetError(f"features {path}: not one of {', '.join(_SUFFIXES)} or a folder")
    if len(features) == 0 or features.size == 0:
        raise DatasetError(f"features {path}: no rows in it")
    return features


def read_megaface_file(path: Path) -> np.ndarray:
    """The embedding float32 [D] of one MegaFace file.

    Raises:
        DatasetError: unreadable, or not such a file.
    """
    try:
        data = read_image_file(str(path))
    except OSError as error:
        raise DatasetError(f"features {path}: cannot be read ({error.strerror})") from None
    head = _MEGAFACE_HEADER.size
    size, *kind = _MEGAFACE_HEADER.unpack_from(data) if len(data) >= head else (0, 0, 0, 0)
    if tuple(kind) != _FLOAT_MATRIX or size < 1 or len(data) != head + 4 * size:
        raise DatasetError(
            f"features {path}: not a MegaFace feature file (int32 N, 1, 4, 5, then N floats; this "
            f"has {len(data)} bytes); write it again"
        )
    return np.frombuffer(data, "<f4", offset=head)


def write_megaface_file(path: Path, embedding: np.ndarray) -> None:
    """Writes one embedding float32 [D] as a MegaFace feature file."""
    header = _MEGAFACE_HEADER.pack(len(embedding), *_FLOAT_MATRIX)
    path.write_bytes(header + embedding.astype("<f4").tobytes())


def _read_folder(path: Path) -> Features:
    arrays = sorted(_files(path, ".npy", deep=False))
    if arrays:
        opened = [_npy_part(file) for file in arrays]
        sizes = {size for _, size in opened}
        if len(sizes) > 1:
            raise DatasetError(f"features {path}: files of sizes {sorted(sizes)}; use one size")
        return Features(path, sizes.pop(), [part for part, _ in opened])
    files = sorted(_files(path, ".bin", deep=True))
    if not files:
        raise DatasetError(f"features {path}: no .npy and no .bin file in it")
    return _megaface_features(path, files, len(read_megaface_file(files[0])))


def _files(folder: Path, suffix: str, *, deep: bool) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent) / name for name in sorted(names) if name.endswith(suffix))
        if not deep:
            return


def _megaface_features(root: Path, files: Sequence[Path], size: int) -> Features:
    def read(start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, size), np.float32)
        for row, file in zip(rows, files[start:stop], strict=True):
            embedding = read_megaface_file(file)
            if len(embedding) != size:
                raise DatasetError(f"features {file}: size {len(embedding)}, others have {size}")
            row[:] = embedding
        return rows

    return Features(
        root,
        size,
        [_Part(len(files), read)],
        names=[str(file.relative_to(root.parent if root in files else root)) for file in files],
        identities=[file.parent.name for file in files],
    )


def _npy_part(path: Path) -> tuple[_Part, int]:
    with _damage_named(path):
        array = np.lib.format.open_memmap(path, mode="r")
    return _part(path, array), array.shape[1]


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What goes wrong in reading a file of NumPy's as a `DatasetError`."""
    try:
        # NumPy warns of odd headers before it raises.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except DatasetError:
        raise
    # Each layer raises kinds of its own: NumPy, zip, each compression, Python's tokenizer.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:80]!r}"
        raise DatasetError(
            f"features {path}: not a readable {path.suffix} file ({reason}); write it again"
        ) from None


def _part(path: Path, array: object) -> _Part:
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"features {path}: its embeddings are no array; use numpy.savez")
    if array.ndim != 2 or array.dtype.kind != "f":
        raise DatasetError(
            f"features {path}: {str(array.dtype)[:40]!a} {list(array.shape)}, expected floats "
            "[images, size]"
        )
    return _Part(len(array), lambda start, stop: np.asarray(array[start:stop]))


def _refuse_bomb(path: Path) -> None:
    """A few megabytes can unpack to gigabytes of zeros.

    Raises:
        DatasetError: they do.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > max(_HARMLESS_BYTES, _MAX_COMPRESSION * member.compress_size):
                raise DatasetError(
                    f"features {path}: {member.filename} unpacks from {member.compress_size:,} "
                    f"bytes to {member.file_size:,}, which no embeddings do; write it again with "
                    "numpy.savez"
                )


def _read_npz(path: Path) -> Features:
    with _damage_named(path):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DatasetError(f"features {path}: not an .npz archive; name one array .npy")
        with archive:
            _refuse_bomb(path)
            names = {
                what: next((name for name in known if name in archive.files), None)
                for what, known in _ARRAYS.items()
            }
            if names["embeddings"] is None:
                raise DatasetError(
                    f"features {path}: arrays {sorted(archive.files)[:20]}, expected one called "
                    "embeddings"
                )
            found = {what: archive[name] for what, name in names.items() if name is not None}
    array = found.pop("embeddings")
    part = _part(path, array)
    for what, values in found.items():
        if np.shape(values) != (len(array),):
            raise DatasetError(
                f"features {path}: {what} {list(np.shape(values))}, expected one for each of "
                f"{len(array)} rows"
            )
    with _damage_named(path):
        texts = {what: [str(v) for v in values.tolist()] for what, values in found.items()}
    return Features(path, array.shape[1], [part], **texts)
