"""From any format to any other: `convert(open_faces("faces"), "faces_rec", "rec")`.

The set is written to a hidden folder beside its destination, in pieces, with a journal of them. So
a conversion that was killed goes on where it was when it is called again. What was written is read
again and compared with what was read, by a checksum over (identity, image) that no order changes;
only then does the folder get its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import FORMATS
from facetrain_datasets.image_index import Progress, replaced_file
from facetrain_datasets.source import FaceSource

JOURNAL_FILE = ".conversion.json"
LOCK_FILE = ".conversion.lock"
_REPORT_EVERY = 256


@dataclass(frozen=True)
class ConvertResult:
    """What was written, and verified.

    Attributes:
        num_images: images in all.
        num_identities: classes, those without images too.
        num_resumed: images that an earlier, interrupted call had written.
        checksum: over (identity, image) of all images, 32 hexadecimal digits.
    """

    num_images: int
    num_identities: int
    num_resumed: int
    checksum: str


class SetChecksum:
    """A checksum of (identity, image) pairs that does not depend on their order.

    The sum of a 128-bit BLAKE2 digest of each, so that an image that is there twice counts twice.
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, identity: str, image: bytes) -> None:
        digest = hashlib.blake2b(
            identity.encode("utf-8", "surrogateescape") + b"\0", digest_size=16
        )
        digest.update(image)
        self.value = (self.value + int.from_bytes(digest.digest(), "little")) % (1 << 128)

    def __str__(self) -> str:
        return f"{self.value:032x}"


@dataclass(frozen=True)
class _Journal:
    """How far a conversion is: what it is of, images written, writer's position, their checksum."""

    task: str
    num_done: int = 0
    position: int = 0
    checksum: int = 0

    @classmethod
    def read(cls, folder: Path, task: str) -> _Journal:
        """The journal of a folder, new where there is none.

        Raises:
            DatasetError: it is of another conversion.
        """
        file = folder / JOURNAL_FILE
        if not file.exists():
            return cls(task)
        try:
            journal = cls(**json.loads(file.read_text()))
            numbers = (journal.num_done, journal.position, journal.checksum)
            if not all(isinstance(number, int) and number >= 0 for number in numbers):
                raise TypeError("no numbers")
        except (ValueError, TypeError, RecursionError):
            journal = None
        if journal is None or journal.task != task:
            raise DatasetError(
                f"{folder}: left by the conversion of another set or to another format; "
                f"delete the folder or choose another destination"
            )
        return journal

    def write(self, folder: Path) -> None:
        with replaced_file(folder / JOURNAL_FILE) as file:
            file.write(json.dumps(asdict(self)).encode())


def convert(
    source: FaceSource,
    out: str | os.PathLike[str],
    format: str,
    *,
    images_per_file: int = 10_000,
    progress: Progress | None = None,
) -> ConvertResult:
    """Writes a set in another format and verifies it; call it again after an interruption.

    Args:
        source: the set.
        out: the folder to make.
        format: a name in `FORMATS`.
        images_per_file: of a tar shard or Parquet file; also how many are written between two
            points to resume from.
        progress: called with (done, in all) now and then, writing and verifying together.

    Raises:
        DatasetError: `out` exists, another process is writing it, the format cannot hold the set,
            or the written set differs.
        OSError: an image cannot be read, or the set cannot be written.
    """
    folder = Path(out)
    if format not in FORMATS:
        raise DatasetError(f"format {format!r}; known: {', '.join(FORMATS)}")
    if images_per_file < 1:
        raise DatasetError(f"images_per_file is {images_per_file}; allowed: 1 or more")
    _check_free(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    with _locked(partial):
        _check_free(folder)
        count = _Counter(2 * len(source), progress)
        num_resumed, checksum = _write(source, partial, format, images_per_file, count)
        _verify(partial, format, source, checksum, count)
        for hidden in partial.glob(".*"):  # the journal, and what killed calls left half written
            if hidden.name != LOCK_FILE:
                hidden.unlink()
        partial.rename(folder)
        (folder / LOCK_FILE).unlink()
    return ConvertResult(len(source), len(source.identities), num_resumed, str(checksum))


def _check_free(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DatasetError(f"{folder}: exists; delete it or choose another folder")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, for this process alone; it is made, and removed where nothing is written.

    Raises:
        DatasetError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(
                f"{folder}: another process is writing it; wait, or choose another destination"
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if [entry.name for entry in folder.iterdir()] == [LOCK_FILE]:
                    (folder / LOCK_FILE).unlink()
                    folder.rmdir()


class _Counter:
    """Counts images and tells `progress` now and then."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def add(self, num_images: int = 1) -> None:
        before = self._done // _REPORT_EVERY
        self._done += num_images
        if self._progress and (self._done // _REPORT_EVERY > before or self._done == self._total):
            self._progress(self._done, self._total)


def _write(
    source: FaceSource, folder: Path, format: str, images_per_file: int, count: _Counter
) -> tuple[int, SetChecksum]:
    """Writes what an earlier call has not; the number of images it had, and the checksum of all."""
    chosen = FORMATS[format]
    order = np.arange(len(source))
    if chosen.is_grouped:
        order = np.argsort(source.labels, kind="stable")
    journal = _Journal.read(folder, _task(source, format, images_per_file))
    writer = chosen.writer(folder, source.identities, source.labels[order])
    num_resumed = journal.num_done
    count.add(num_resumed)
    checksum = SetChecksum(journal.checksum)

    def images(first: int) -> Iterator[bytes]:
        for index in order[first : first + images_per_file].tolist():
            image = source.read(index)
            checksum.add(source.identities[source.labels.item(index)], image)
            yield image
            count.add()

    for first in range(num_resumed, len(source), images_per_file):
        position = writer.write(first, images(first), journal.position)
        num_done = min(first + images_per_file, len(source))
        journal = replace(journal, num_done=num_done, position=position, checksum=checksum.value)
        journal.write(folder)
    writer.finish(journal.position)
    return num_resumed, checksum


def _task(source: FaceSource, format: str, images_per_file: int) -> str:
    """What tells a conversion from another."""
    digest = hashlib.blake2b(source.labels.tobytes(), digest_size=16)
    for name in source.identities:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\n")
    return f"{len(source)} images {digest.hexdigest()} as {format}, {images_per_file} a file"


def _verify(
    folder: Path, format: str, source: FaceSource, expected: SetChecksum, count: _Counter
) -> None:
    written = FORMATS[format].open(folder, None)
    found = SetChecksum()
    for index in range(len(written)):
        found.add(written.identities[written.labels.item(index)], written.read(index))
        count.add()
    if len(written) != len(source) or found.value != expected.value:
        raise DatasetError(
            f"{folder}: {len(written)} images with checksum {found}, expected {len(source)} with "
            f"{expected}; check the disk, delete the folder and convert again"
        )
