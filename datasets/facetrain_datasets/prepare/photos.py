"""From photos to a folder of aligned faces, one folder per identity: resumable, several threads.

    prepare_photos(ImageFolder("photos"), Path("photos"), Path("faces"), open_detector(model))

A face appears under its name when it is whole; what became of each photo is noted right after. So a
call that was killed is resumed by calling again, and photos added since are prepared then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

import cv2
import numpy as np

from facetrain_datasets.decode import MAX_PIXELS, decode_photo
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_index import named_errors
from facetrain_datasets.prepare.alignment import TEMPLATE, TEMPLATE_SIZE, align, similarity
from facetrain_datasets.prepare.detectors import Detector, Face
from facetrain_datasets.prepare.face_choice import FACE_CHOICES
from facetrain_datasets.prepare.journal import Journal, Outcome, read_outcomes
from facetrain_datasets.source import FaceSource

JOURNAL_FILE = "prepare.jsonl"

#: Why a photo gives no face.
UNUSABLE = "unusable photo"
NO_FACE = "no face"
SEVERAL_FACES = "several faces"
TOO_SMALL = "face too small"
BAD_LANDMARKS = "bad landmarks"

_IN_FLIGHT_PER_THREAD = 4


@dataclass(frozen=True)
class PrepareSettings:
    """What the faces depend on besides photos and detector.

    Attributes:
        choice: a name of `FACE_CHOICES`.
        min_size: smallest side, in pixels of the photo, of the square that becomes a face.
        image_size: height and width of a face.
        quality: of the JPEG files, 1 to 100.
        max_pixels: larger photos are rejected before they are decoded.
    """

    choice: str = "largest"
    min_size: float = 40.0
    image_size: int = TEMPLATE_SIZE
    quality: int = 95
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.choice not in FACE_CHOICES:
            known = ", ".join(FACE_CHOICES)
            raise DatasetError(f"choice of face {self.choice!r} is unknown; choose one of {known}")
        for name, value, lowest, highest in (
            ("min_size", self.min_size, 1, np.inf),
            ("image_size", self.image_size, 8, 4096),
            ("quality", self.quality, 1, 100),
            ("max_pixels", self.max_pixels, 1, np.inf),
        ):
            if not lowest <= value <= highest:
                raise DatasetError(f"{name} is {value}; allowed: {lowest} to {highest}")


def prepare_photos(
    photos: FaceSource,
    root: Path,
    out: Path,
    detector: Detector,
    settings: PrepareSettings | None = None,
    *,
    num_threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes `out/IDENTITY/PHOTO.jpg` for every photo with a usable face.

    Args:
        photos: photos of any size, by identity.
        root: the folder or list they come from; names of photos are relative to it.
        out: folder to write to, made where absent.
        detector: finds the faces.
        settings: how to choose and cut them.
        num_threads: default: one per core.
        progress: called with the number of photos done, those of an earlier call included.

    Returns:
        The journal, for `read_outcomes`.

    Raises:
        DatasetError: an identity that cannot be a folder, or an `out` that holds something else.
    """
    settings = settings or PrepareSettings()
    for identity in photos.identities:
        _check_folder_name(identity)
    out.mkdir(parents=True, exist_ok=True)
    path = out / JOURNAL_FILE
    if not path.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise DatasetError(
            f"{out}: not empty and without {JOURNAL_FILE}, so not a folder of prepared faces; "
            "choose another folder"
        )
    journal = Journal(path, {"detector": detector.describe(), **asdict(settings)})
    try:
        known = {outcome.photo: outcome.file for outcome in read_outcomes(path)}
        done = len(known)
        work = _missing(photos, root, known)
        for outcome in _in_order(
            lambda task: _prepare_one(photos, *task, out, detector, settings),
            work,
            num_threads or os.cpu_count() or 1,
        ):
            journal.add(outcome)
            done += 1
            if progress is not None:
                progress(done)
    finally:
        journal.close()
    return path


def photo_name(photos: FaceSource, root: Path, index: int) -> str:
    """The path of a photo below its folder or list, with forward slashes."""
    where = PurePath(photos.describe(index))
    folder = root if root.is_dir() else root.parent
    return (where.relative_to(folder) if where.is_relative_to(folder) else where).as_posix()


def _missing(
    photos: FaceSource, root: Path, known: dict[str, str]
) -> Iterator[tuple[int, str, str]]:
    """Index, name and file of each photo not yet known; no two photos get one file."""
    taken = set(known.values())
    labels = photos.labels
    for index in range(len(photos)):
        name = photo_name(photos, root, index)
        if name in known:
            continue
        folder = photos.identities[int(labels[index])]
        stem = PurePath(name).stem
        file, number = f"{folder}/{stem}.jpg", 1
        while file in taken:
            number += 1
            file = f"{folder}/{stem}-{number}.jpg"
        taken.add(file)
        yield index, name, file


def _in_order(
    function: Callable[[tuple[int, str, str]], Outcome],
    tasks: Iterator[tuple[int, str, str]],
    num_threads: int,
) -> Iterator[Outcome]:
    """Results in the order of the tasks, of which only a few are taken ahead."""
    waiting: deque[Future[Outcome]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) >= _IN_FLIGHT_PER_THREAD * num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _prepare_one(
    photos: FaceSource,
    index: int,
    name: str,
    file: str,
    out: Path,
    detector: Detector,
    settings: PrepareSettings,
) -> Outcome:
    def rejected(reason: str, detail: str) -> Outcome:
        return Outcome(name, file, reason, detail)

    try:
        photo = decode_photo(photos.read(index), name, max_pixels=settings.max_pixels)
    except DatasetError as error:
        return rejected(UNUSABLE, str(error).removeprefix(f"{name}: "))
    except OSError as error:
        return rejected(UNUSABLE, f"cannot be read ({error.strerror})")
    faces = detector.detect(photo, name)
    if not faces:
        return rejected(NO_FACE, f"by {detector.describe()}")
    sides = [_side_in_photo(face) for face in faces]
    if not any(sides):
        return rejected(BAD_LANDMARKS, f"of {len(faces)} faces")
    big = [face for face, side in zip(faces, sides, strict=True) if side >= settings.min_size]
    if not big:
        detail = f"{max(sides):.0f} pixels in the photo, fewer than {settings.min_size:g}"
        return rejected(TOO_SMALL, detail)
    face = FACE_CHOICES[settings.choice](big, photo.shape[1], photo.shape[0])
    if face is None:
        return rejected(SEVERAL_FACES, f"{len(big)} faces of at least {settings.min_size:g} pixels")
    aligned = align(photo, face.points, settings.image_size)
    _write_jpeg(out / file, aligned, settings.quality)
    points = tuple(np.round(face.points.reshape(-1), 2).tolist())
    return Outcome(name, file, score=round(face.score, 4), points=points)


def _side_in_photo(face: Face) -> float:
    """Side of the square that becomes the aligned face; 0 where landmarks allow none."""
    try:
        matrix = similarity(face.points, TEMPLATE)
    except DatasetError:
        return 0.0
    return TEMPLATE_SIZE / float(np.hypot(*matrix[:, 0]))


def _write_jpeg(path: Path, image: np.ndarray, quality: int) -> None:
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with named_errors(path):
        partial.write_bytes(data.tobytes())
    partial.replace(path)


def _check_folder_name(identity: str) -> None:
    if not identity or identity.startswith(".") or "/" in identity or "\0" in identity:
        raise DatasetError(
            f"identity {identity!r}: cannot be the name of a folder; rename it (no slash, no "
            "leading dot)"
        )
