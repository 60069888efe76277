"""RecordIO sets as InsightFace lays them out: `train.rec`, `train.idx`, `property`.

`.idx` has a line `key<TAB>byte` for each record. Where key 0 has labels and no image, its labels
are [A, B): keys 1 .. A - 1 are images, A .. B - 1 describe one identity each. Elsewhere, as in
files of im2rec, every key is an image. `property` reads `num_classes,height,width`.

Labels are f32, exact to 2**24. So nothing is taken from the identities' ranges, which are off by
one beyond that, and class ids that large are neither read nor written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.class_labels import check_num_classes
from facetrain_datasets.formats.identity_names import (
    NAMES_FILE,
    read_identity_names,
    write_identity_names,
)
from facetrain_datasets.formats.recordio import image_of_parts, pack_record, scan_records
from facetrain_datasets.image_header import read_image_header
from facetrain_datasets.image_index import (
    ImageIndex,
    Progress,
    named_errors,
    open_index,
    replaced_file,
)
from facetrain_datasets.indexed_faces import IndexedFaces
from facetrain_datasets.packed_strings import PackedStrings
from facetrain_datasets.whole_numbers import is_whole_number

PROPERTY_FILE = "property"
NUM_EXACT = 1 << 24  # f32 holds the whole numbers below, and no two of them fall together


def open_rec(path: Path, progress: Progress | None = None) -> IndexedFaces:
    """The images of a RecordIO set, by ascending key.

    Args:
        path: the `.rec`, the `.idx` or the folder that holds one.
        progress: called with (bytes scanned, bytes in all) while the index is built.

    Raises:
        DatasetError: no such file, or a damaged one.
    """
    rec = _rec_file(path)
    beside = [rec.with_suffix(".idx"), rec.with_name(PROPERTY_FILE), rec.with_name(NAMES_FILE)]
    files = [rec, *(file for file in beside if file.exists())]
    index = open_index(rec, "rec", files, lambda: _build_index(rec, progress))
    return IndexedFaces(index, [rec], image_of_parts)


def _rec_file(path: Path) -> Path:
    if not path.is_dir():
        rec = path.with_suffix(".rec")
        if not rec.is_file():
            raise DatasetError(f"{rec}: no such file; give the .rec or the folder that holds it")
        return rec
    found = sorted(path.glob("*.rec"))
    if len(found) != 1:
        what = ", ".join(file.name for file in found[:5]) or "none"
        raise DatasetError(f"{path}: expected one .rec file, found {what}; give the file itself")
    if not found[0].is_file():
        raise DatasetError(f"{found[0]}: no file; give the .rec or the folder that holds it")
    return found[0]


def _build_index(rec: Path, progress: Progress | None) -> ImageIndex:
    records = scan_records(rec, progress)
    keys, note = _keys(rec, records)
    order = np.argsort(keys, kind="stable")
    keys, records = keys[order], records[order]
    images = _images(keys, records)
    keys, records = keys[images], records[images]
    if not len(records):
        raise DatasetError(f"{rec}: no image in it; restore the file")
    labels = _class_ids(rec, keys, records["label"])
    num_classes = _num_classes(rec.with_name(PROPERTY_FILE), int(labels.max()) + 1)
    check_num_classes(rec, num_classes, len(labels))
    return ImageIndex(
        identities=read_identity_names(rec.parent, num_classes),
        labels=labels,
        names=PackedStrings.of(f"key {key}" for key in keys.tolist()),
        offsets=records["offset"],
        lengths=records["length"],
        note=note,
    )


def _keys(rec: Path, records: np.ndarray) -> tuple[np.ndarray, str]:
    """The key of each record, and what to tell the user about them."""
    idx = rec.with_suffix(".idx")
    if not idx.exists():
        return _keys_of_ids(records), f"{idx.name} is absent: keys are the records' ids"
    try:
        return _keys_of_idx(idx, rec, records), ""
    except DatasetError as error:
        # Whoever wrote records after the index has not written it again: the records hold.
        if idx.stat().st_mtime_ns >= rec.stat().st_mtime_ns:
            raise
        return _keys_of_ids(records), f"stale and not used: {error}"


def _keys_of_ids(records: np.ndarray) -> np.ndarray:
    """Writers number records by their keys; where they did not, the order of the file counts."""
    ids = records["id"]
    if len(np.unique(ids)) == len(ids) and ids.max(initial=0) < 1 << 63:
        return ids.astype(np.int64)
    return np.arange(len(records))


def _keys_of_idx(idx: Path, rec: Path, records: np.ndarray) -> np.ndarray:
    """The key of each record as the `.idx` has it, which must name each record once."""
    keys, starts = _read_idx(idx)
    order = np.argsort(starts, kind="stable")
    expected = records["start"]
    if np.array_equal(starts[order], expected):
        keys = keys[order]
        if len(np.unique(keys)) < len(keys):
            raise _lying(idx, "a key twice")
        return keys
    wrong = np.flatnonzero(~np.isin(starts, expected))
    if not wrong.size:
        raise _lying(idx, f"{len(starts)} lines for the {len(expected)} records of {rec.name}")
    line, start = int(wrong[0]) + 1, int(starts[wrong[0]])
    if start >= rec.stat().st_size:
        raise _lying(idx, f"byte {start} on line {line} lies behind the end of {rec.name}")
    raise _lying(idx, f"byte {start} on line {line} is not where a record of {rec.name} begins")


def _lying(idx: Path, found: str) -> DatasetError:
    return DatasetError(
        f"{idx}: {found}; it is of another .rec, or one of them is damaged: restore both, "
        f"or remove the .idx to take keys from the records"
    )


def _read_idx(idx: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of an empty file
            lines = np.loadtxt(idx, np.int64, comments=None, ndmin=2, encoding="latin-1")
        keys, starts = lines.T
    except (ValueError, Warning) as error:
        raise _lying(idx, f"not lines of 'key byte' ({error})") from None
    return keys, starts


def _images(keys: np.ndarray, records: np.ndarray) -> np.ndarray:
    """bool: which records, by ascending key, are images."""
    has_labels = records["num_labels"] > 0
    bare = has_labels & (records["length"] == 0)
    if len(keys) and keys[0] == 0 and bare[0]:
        end = float(records["label"][0])
        if 1 <= end < NUM_EXACT:
            return (keys >= 1) & (keys < end)
    # Nothing says how many images there are, or not exactly: what describes an identity has none.
    return ~bare


def _class_ids(rec: Path, keys: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """int64 class ids of f32 labels."""
    valid = (labels >= 0) & (labels < NUM_EXACT) & (labels == np.floor(labels))
    if not valid.all():
        wrong = int(np.argmin(valid))
        why = (
            f"floats hold class ids exactly only below 2**24 = {NUM_EXACT}, beyond it classes "
            f"fall together; write the set from its original as tar or Parquet"
            if labels[wrong] >= NUM_EXACT
            else "a class id is a whole number from 0; restore the file"
        )
        raise DatasetError(f"{rec}: key {keys[wrong]} has label {labels[wrong]:.9g}: {why}")
    return labels.astype(np.int64)


def _num_classes(file: Path, num_found: int) -> int:
    """Number of classes, by the property file where there is one."""
    if not file.exists():
        return num_found
    first = file.read_text(encoding="utf-8", errors="replace").split(",")[0].strip()
    if not (is_whole_number(first) and num_found <= int(first) <= NUM_EXACT):
        raise DatasetError(
            f"{file}: expected 'num_classes,height,width' with at least the {num_found} classes "
            f"of the images, found {first[:40]!r}; correct or remove it"
        )
    return int(first)


class RecWriter:
    """Writes `train.rec`, `train.idx`, `property` and the names of the classes; a `FaceWriter`.

    The images must come grouped by identity: those of one are a range of keys.

    Raises:
        DatasetError: more classes than floats can number.
    """

    def __init__(self, folder: Path, identities: Sequence[str], labels: np.ndarray) -> None:
        if len(identities) > NUM_EXACT:
            raise DatasetError(
                f"{len(identities)} classes; RecordIO holds class ids as floats, exact only below "
                f"2**24 = {NUM_EXACT}: write tar or Parquet"
            )
        assert (labels[1:] >= labels[:-1]).all()
        self._rec = folder / "train.rec"
        self._identities = identities
        self._labels = labels

    def write(self, first: int, images: Iterable[bytes], position: int) -> int:
        """Records behind those before; `position` is where they end. See `FaceWriter`."""
        with self._at(position) as file:
            for number, image in enumerate(images, first):
                file.write(pack_record(number + 1, self._labels.item(number), image))
            return file.tell()

    def finish(self, position: int) -> None:
        """The records of the identities, key 0, and the files beside."""
        num_images, num_classes = len(self._labels), len(self._identities)
        ends = 1 + np.searchsorted(self._labels, np.arange(num_classes), side="right")
        with self._at(position) as file:
            begin = 1
            for key, end in enumerate(ends.tolist(), num_images + 1):
                file.write(pack_record(key, (begin, end), b""))
                begin = end
            file.write(pack_record(0, (num_images + 1, num_images + 1 + num_classes), b""))
        records = scan_records(self._rec)
        with replaced_file(self._rec.with_suffix(".idx")) as idx:
            for key, start in zip(records["id"].tolist(), records["start"].tolist(), strict=True):
                idx.write(b"%d\t%d\n" % (key, start))
        height, width = self._image_size(records[0])
        with replaced_file(self._rec.with_name(PROPERTY_FILE)) as properties:
            properties.write(b"%d,%d,%d" % (num_classes, height, width))
        write_identity_names(self._rec.parent, self._identities)

    @contextmanager
    def _at(self, position: int) -> Iterator[BinaryIO]:
        """The file, without what a killed process wrote behind `position`."""
        self._rec.touch()
        with named_errors(self._rec), self._rec.open("r+b") as file:
            file.truncate(position)
            file.seek(position)
            yield file

    def _image_size(self, record: np.void) -> tuple[int, int]:
        """Height and width of an image; those of aligned faces where it does not say."""
        with self._rec.open("rb") as file:
            file.seek(record["offset"])
            data = file.read(abs(record["length"]))
        header = read_image_header(data if record["length"] >= 0 else image_of_parts(data))
        return (header.height, header.width) if header else (112, 112)
