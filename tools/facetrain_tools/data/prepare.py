"""`facetrain data prepare PHOTOS OUT --detector FILE`: from photos to aligned faces.

PHOTOS is a folder with one folder per identity, or a CSV file with the columns path and identity.
OUT becomes a folder of 112x112 JPEGs, one folder per identity, with report.html, rejects.csv and
prepare.jsonl (what became of each photo) beside them. A call that was stopped goes on when it is
made again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain.report import Block, Facts, PictureRow, Pictures, Section, Table
from facetrain.report.tables import percent
from facetrain_datasets.decode import MAX_PIXELS
from facetrain_datasets.formats import open_faces
from facetrain_datasets.prepare.detectors import open_detector
from facetrain_datasets.prepare.journal import Outcome, read_outcomes
from facetrain_datasets.prepare.photos import PrepareSettings, photo_name, prepare_photos
from facetrain_datasets.source import FaceSource
from facetrain_tools.data.lists import write_list
from facetrain_tools.data.pictures import read_picture
from facetrain_tools.output import refuse_inside, write_report
from facetrain_tools.progress import progress

REJECTS_FILE = "rejects.csv"

_NUM_PICTURES = 48
_CHOICES = {
    "largest": "the largest face",
    "central": "the most central face",
    "reject": "the only face",
}


@dataclass(frozen=True)
class PrepareFlags:
    """Find, choose, align and cut out the face of every photo."""

    photos: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PHOTOS")]
    """Folder with one folder of photos per identity, or a CSV file: path,identity."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the faces; new, or that of an earlier call to go on with."""
    detector: Path
    """YuNet's .onnx file, another five-point detector's (SCRFD), or a CSV file of landmarks."""
    kind: Literal["auto", "onnx", "yunet", "csv"] = "auto"
    """What --detector is; auto goes by its suffix and outputs."""
    face: Literal["largest", "central", "reject"] = "largest"
    """Which of several faces in a photo is taken; reject takes none then."""
    min_score: float = 0.5
    """Faces of which the detector is less certain do not count."""
    min_size: float = 40.0
    """Smallest side of the square that is cut out, in pixels of the photo; smaller do not count."""
    size: Annotated[int, tyro.conf.arg(name="image-size")] = 112
    """Height and width of the faces written."""
    quality: int = 95
    """Of the JPEG files, 1 to 100."""
    max_pixels: int = MAX_PIXELS
    """Photos of more pixels are rejected unread."""
    threads: int | None = None
    """Photos at a time; default: one per core."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain data prepare` with the flags given; the exit code."""
    return run_prepare(parse_flags(PrepareFlags, arguments, "facetrain data prepare"))


def run_prepare(flags: PrepareFlags) -> int:
    """Prepares what is left to do, then writes the report over everything; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, or no photo gave a face.
    """
    # What else lies in a folder of photos, such as a list of landmarks, is not the data.
    refuse_inside(flags.out, flags.photos)
    photos = open_faces(flags.photos, "folder" if flags.photos.is_dir() else "auto")
    detector = open_detector(flags.detector, flags.kind, flags.min_score)
    settings = PrepareSettings(
        choice=flags.face,
        min_size=flags.min_size,
        image_size=flags.size,
        quality=flags.quality,
        max_pixels=flags.max_pixels,
    )
    started = time.perf_counter()
    with progress("preparing", len(photos)) as done:
        journal = prepare_photos(
            photos,
            flags.photos,
            flags.out,
            detector,
            settings,
            num_threads=flags.threads,
            progress=done,
        )
    seconds = time.perf_counter() - started
    tally = _Tally.of(journal)
    write_list(
        flags.out / REJECTS_FILE,
        ("photo", "reason", "detail"),
        ((o.photo, o.reason, o.detail) for o in read_outcomes(journal) if o.reason),
    )
    facts = Facts(
        {
            "photos": f"{tally.num_photos:,} of {tally.num_identities:,} identities "
            f"in {flags.photos}",
            "faces": f"{tally.num_faces:,} of {tally.num_identities - tally.num_empty:,} "
            f"identities in {flags.out}",
            "rejected": f"{tally.num_rejects:,} photos; "
            f"{tally.num_empty:,} identities have no face",
            "detector": detector.describe(),
            "choice": f"{_CHOICES[flags.face]}, cut-out of at least {flags.min_size:g} pixels",
            "faces are": f"{flags.size}x{flags.size} JPEG of quality {flags.quality}, bilinear "
            "five-point similarity",
            "time": f"{seconds:,.0f} s for this call",
        }
    )
    table = tally.table()
    print(facts.to_text(), *([table.to_text()] if tally.num_rejects else []), sep="\n\n")
    write_report(
        flags.out,
        f"Faces of {flags.photos.name}",
        [
            Section("Result", [facts]),
            *_sections(flags, photos, journal, tally),
        ],
        summary=f"facetrain data prepare {flags.photos} {flags.out}",
        flags=flags,
        results={
            "num_photos": tally.num_photos,
            "num_faces": tally.num_faces,
            "num_identities": tally.num_identities,
            "num_identities_without_face": tally.num_empty,
            "rejects": dict(tally.reasons),
        },
    )
    if not tally.num_faces:
        first = next(read_outcomes(journal), None)
        raise FacetrainError(
            f"{flags.photos}: no photo gave a face"
            + (f" ({first.photo}: {first.reason}, {first.detail})" if first else "")
            + f"; see {flags.out / REJECTS_FILE}"
        )
    return 0


@dataclass(frozen=True)
class _Tally:
    """A journal in numbers: photos by reason, "" for those that gave a face."""

    reasons: Counter[str]
    examples: dict[str, str]
    num_faces: int
    num_identities: int
    num_empty: int

    @classmethod
    def of(cls, journal: Path) -> _Tally:
        reasons: Counter[str] = Counter()
        faces: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for outcome in read_outcomes(journal):
            reasons[outcome.reason] += 1
            faces[outcome.file.split("/")[0]] += not outcome.reason
            examples.setdefault(outcome.reason, f"{outcome.photo}: {outcome.detail}")
        num_faces = reasons.pop("", 0)
        num_empty = sum(not count for count in faces.values())
        return cls(reasons, examples, num_faces, len(faces), num_empty)

    @property
    def num_rejects(self) -> int:
        return self.reasons.total()

    @property
    def num_photos(self) -> int:
        return self.num_faces + self.num_rejects

    def table(self) -> Table:
        return Table(
            ("reason", "photos", "share", "for example"),
            [
                (reason, f"{count:,}", percent(count / self.num_photos), self.examples[reason])
                for reason, count in self.reasons.most_common()
            ],
        )


def _sections(
    flags: PrepareFlags, photos: FaceSource, journal: Path, tally: _Tally
) -> Iterator[Section]:
    if tally.num_faces:
        accepted = (outcome for outcome in read_outcomes(journal) if not outcome.reason)
        faces = [
            read_picture((flags.out / outcome.file).read_bytes, outcome.file)
            for outcome in _spread(accepted, tally.num_faces)
        ]
        yield Section(f"{len(faces)} of the faces", [Pictures([PictureRow("", faces)])])
    if tally.num_rejects:
        rejected = (outcome for outcome in read_outcomes(journal) if outcome.reason)
        chosen = {outcome.photo: outcome for outcome in _spread(rejected, tally.num_rejects)}
        pictures = []
        for index in range(len(photos)):
            outcome = chosen.get(photo_name(photos, flags.photos, index))
            if outcome is not None:
                caption = f"{outcome.photo}: {outcome.reason}"
                pictures.append(read_picture(partial(photos.read, index), caption))
        blocks: list[Block] = [tally.table(), Pictures([PictureRow("", pictures)])]
        yield Section(f"Rejected photos, {len(pictures)} of them shown", blocks)


def _spread(outcomes: Iterator[Outcome], count: int) -> list[Outcome]:
    """Some of them, evenly over all."""
    chosen = set(np.linspace(0, count - 1, min(count, _NUM_PICTURES)).astype(int).tolist())
    return [outcome for row, outcome in enumerate(outcomes) if row in chosen]
