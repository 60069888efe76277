"""`facetrain data clean PATH --model X`: labels that look wrong, to review; nothing is deleted.

images.csv lists images that do not look like their identity (outliers) or look like another one
(mislabelled, with its name); `facetrain data select PATH OUT --without images.csv` leaves them out.
identities.csv lists identities that look like one person under two names (split) or two people
under one (merged). The page shows all of these, the most suspect first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.curation.alike import AlikePairs, split_identities
from facetrain.curation.centers import identity_centers
from facetrain.curation.levels import measure_levels
from facetrain.curation.mixed import MixedIdentity, mixed_identities
from facetrain.curation.suspects import Suspects, SuspectThresholds, find_suspects
from facetrain.evaluation.search import build_index
from facetrain.report import Block, Facts, Picture, PictureRow, Pictures, Section, Table, Text
from facetrain_datasets.source import FaceSource
from facetrain_tools.data.lists import IMAGE_COLUMNS, image_cells, write_list
from facetrain_tools.data.pictures import picture_of, shown_of
from facetrain_tools.data.sets import Rows, SetFlags, embed_set, open_set
from facetrain_tools.output import output_folder, write_report

IMAGES_FILE = "images.csv"
IDENTITIES_FILE = "identities.csv"

_NUM_SHOWN = 40
_NUM_PICTURES = 4


@dataclass(frozen=True, kw_only=True)
class CleanFlags(SetFlags):
    """Find labels that look wrong. Thresholds are cosines, by default measured on the set."""

    path: tyro.conf.Positional[Path]
    """Folder of identities, .rec, .tar, .parquet, or list."""
    outlier: float | None = None
    """An image less like its identity than this is an outlier; default: what random people reach,
    median and two standard deviations more."""
    alike: float | None = None
    """An image at least this like another identity, and more so than its own, is mislabelled;
    default: what the most alike people reach, median and two standard deviations more."""
    gap: float = 0.1
    """By how much it is more like the other identity."""
    same: float | None = None
    """Identities at least this alike are one person; default: what the most alike people reach,
    median and five standard deviations more."""
    strangers: float | None = None
    """Parts of an identity less alike than this are two people; default: what random people reach,
    median and three standard deviations more."""


class _Findings(NamedTuple):
    suspects: Suspects
    splits: AlikePairs
    merges: list[MixedIdentity]


def main(arguments: Sequence[str]) -> int:
    """`facetrain data clean` with the flags given; the exit code."""
    return run_clean(parse_flags(CleanFlags, arguments, "facetrain data clean"))


def run_clean(flags: CleanFlags) -> int:
    """Searches, prints, writes lists and report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    source = open_set(flags.path, flags.format)
    folder = output_folder("data-clean", flags.out, flags.path)
    embedded = embed_set(flags, source)
    embeddings, labels, num_classes = embedded.embeddings, source.labels, len(source.identities)
    centers = identity_centers(embeddings, labels, num_classes)
    index = build_index(centers.unit(), flags.search)
    given = (flags.outlier, flags.alike, flags.same, flags.strangers)
    outlier, alike, same, strangers = given
    facts = {
        "data": f"{flags.path} ({len(source):,} images of {len(centers.present):,} identities)",
        **embedded.facts,
        "search": index.describe(),
    }
    if None in given:
        levels = measure_levels(centers, index)
        measured = (levels.outlier, levels.alike, levels.same_person, levels.strangers)
        outlier, alike, same, strangers = (
            level if value is None else value for value, level in zip(given, measured, strict=True)
        )
        facts["cosines of people"] = levels.describe()
    assert outlier is not None
    assert alike is not None
    assert same is not None
    assert strangers is not None
    facts["thresholds"] = (
        f"outlier below {outlier:.3f}; mislabelled from {alike:.3f} and {flags.gap:g} above its "
        f"own; split from {same:.3f}; merged below {strangers:.3f}"
    )
    splits = split_identities(centers, index, same)
    found = _Findings(
        find_suspects(
            embeddings,
            labels,
            num_classes,
            SuspectThresholds(outlier, alike, flags.gap),
            np.stack([splits.left, splits.right], axis=1),
            flags.search,
        ),
        splits,
        mixed_identities(embeddings, labels, strangers),
    )
    _write_lists(folder, source, found)
    num_mislabelled = int(found.suspects.is_mislabelled.sum())
    num_outliers = len(found.suspects.rows) - num_mislabelled
    table = Table(
        ("to review", "found", "in"),
        [
            ("mislabelled images", f"{num_mislabelled:,}", IMAGES_FILE),
            ("outliers", f"{num_outliers:,}", IMAGES_FILE),
            ("split identities (pairs)", f"{len(splits):,}", IDENTITIES_FILE),
            ("merged identities", f"{len(found.merges):,}", IDENTITIES_FILE),
        ],
    )
    print(Facts(facts).to_text(), table.to_text(), sep="\n\n")
    write_report(
        folder,
        f"Labels of {flags.path.name} to review",
        [Section("Result", [Facts(facts), table]), *_review(source, found)],
        summary=f"facetrain data clean {flags.path}",
        flags=flags,
        results={
            "thresholds": {
                "outlier": outlier,
                "alike": alike,
                "same": same,
                "strangers": strangers,
            },
            "num_images": len(source),
            "num_mislabelled": num_mislabelled,
            "num_outliers": num_outliers,
            "num_split_pairs": len(splits),
            "num_merged": len(found.merges),
        },
    )
    return 0


def _write_lists(folder: Path, source: FaceSource, found: _Findings) -> None:
    suspects = found.suspects
    write_list(
        folder / IMAGES_FILE,
        (*IMAGE_COLUMNS, "finding", "cosine_to_own", "nearest_identity", "cosine_to_nearest"),
        (
            (
                *image_cells(source, row),
                "mislabelled" if suspects.is_mislabelled[place] else "outlier",
                f"{suspects.own[place]:.4f}",
                source.identities[suspects.nearest.item(place)],
                f"{suspects.other[place]:.4f}",
            )
            for place, row in enumerate(suspects.rows.tolist())
        ),
    )
    splits = found.splits
    write_list(
        folder / IDENTITIES_FILE,
        ("finding", "first_identity", "second_identity", "cosine", "images_of_second_person"),
        [
            *(
                ("split", source.identities[a], source.identities[b], f"{cosine:.4f}", "")
                for a, b, cosine in zip(
                    splits.left.tolist(), splits.right.tolist(), splits.cosines, strict=True
                )
            ),
            *(
                (
                    "merged",
                    source.identities[mixed.identity],
                    "",
                    f"{mixed.cosine:.4f}",
                    " ".join(map(str, mixed.second.tolist())),
                )
                for mixed in found.merges
            ),
        ],
    )


def _review(source: FaceSource, found: _Findings) -> Iterator[Section]:
    rows = Rows(source.labels)
    names = source.identities
    suspects, splits = found.suspects, found.splits

    def pictures(chosen: Sequence[int], note: str) -> list[Picture]:
        return [picture_of(source, row, note) for row in chosen[:_NUM_PICTURES]]

    def suspect_rows(places: np.ndarray, with_nearest: bool) -> Iterator[PictureRow]:
        for place in places[:_NUM_SHOWN].tolist():
            row, nearest = suspects.rows.item(place), suspects.nearest.item(place)
            identity = source.labels.item(row)
            shown = [picture_of(source, row, "(suspect)")]
            shown += pictures(rows.of(identity, _NUM_PICTURES - 1, without=row), "(same label)")
            title = f"{names[identity]}: cosine {suspects.own[place]:.3f} to its own"
            if with_nearest:
                shown += pictures(rows.of(nearest, _NUM_PICTURES), "(looks like)")
                title += f", {suspects.other[place]:.3f} to {names[nearest]}"
            yield PictureRow(title, shown)

    def split_rows() -> Iterator[PictureRow]:
        for left, right, cosine in list(
            zip(splits.left.tolist(), splits.right.tolist(), splits.cosines.tolist(), strict=True)
        )[:_NUM_SHOWN]:
            shown = pictures(rows.of(left, _NUM_PICTURES), "(first)")
            shown += pictures(rows.of(right, _NUM_PICTURES), "(second)")
            yield PictureRow(f"{names[left]} | {names[right]}, cosine {cosine:.3f}", shown)

    def merged_rows() -> Iterator[PictureRow]:
        for mixed in found.merges[:_NUM_SHOWN]:
            shown = pictures(mixed.first.tolist(), "(first person)")
            shown += pictures(mixed.second.tolist(), "(second)")
            counts = f"{len(mixed.first)} and {len(mixed.second)} images"
            title = f"{names[mixed.identity]}: {counts}, cosine {mixed.cosine:.3f}"
            yield PictureRow(title, shown)

    mislabelled = np.flatnonzero(suspects.is_mislabelled)
    outliers = np.flatnonzero(~suspects.is_mislabelled)
    for title, count, text, shown in (
        (
            "Mislabelled images",
            len(mislabelled),
            "More like another identity than their own.",
            suspect_rows(mislabelled, with_nearest=True),
        ),
        (
            "Outliers",
            len(outliers),
            "Not like the other images of their identity, nor like another one: strangers, bad "
            "pictures, or, of an identity with few images, the only right ones.",
            suspect_rows(outliers, with_nearest=False),
        ),
        ("Split identities", len(splits), "One person under two names.", split_rows()),
        ("Merged identities", len(found.merges), "Two people under one name.", merged_rows()),
    ):
        if count:
            blocks: list[Block] = [Text(text), Pictures(list(shown))]
            yield Section(shown_of(title, count, _NUM_SHOWN), blocks)
