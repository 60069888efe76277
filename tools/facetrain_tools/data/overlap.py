"""`facetrain data overlap A B --model X`: people who are in both of two sets, whatever their names.

Compares the mean embeddings of identities. Writes overlap.csv (its column `identity` is A's) and a
page to review. `facetrain data select A TO --without overlap.csv` writes A without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from facetrain.command import parse_flags
from facetrain.curation.alike import AlikePairs, shared_identities
from facetrain.curation.centers import Centers, identity_centers
from facetrain.curation.levels import MIN_IDENTITIES, measure_levels
from facetrain.errors import FacetrainError
from facetrain.evaluation.search import SearchIndex, build_index
from facetrain.report import Facts, PictureRow, Pictures, Section, Table, Text
from facetrain_datasets.source import FaceSource
from facetrain_tools.data.lists import write_list
from facetrain_tools.data.pictures import picture_of, shown_of
from facetrain_tools.data.sets import Rows, SetFlags, embed_set, open_set
from facetrain_tools.output import output_folder, write_report

OVERLAP_FILE = "overlap.csv"

_NUM_PAIRS = 100
_NUM_PICTURES = 4  # of each side


@dataclass(frozen=True, kw_only=True)
class OverlapFlags(SetFlags):
    """Find people who are in two sets, such as one to train on and one to test on."""

    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """The set that people are to be left out of: folder of identities, .rec, .tar, ..."""
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """The set they must not be in."""
    second_features: Path | None = None
    """Precomputed embeddings of the second set, where --features gives those of the first."""
    threshold: float | None = None
    """Cosine of mean embeddings from which two identities are one person; default: what the most
    alike identities within either set reach, median and three standard deviations more."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain data overlap` with the flags given; the exit code."""
    return run_overlap(parse_flags(OverlapFlags, arguments, "facetrain data overlap"))


def run_overlap(flags: OverlapFlags) -> int:
    """Compares, prints, writes list and report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    if (flags.features is None) != (flags.second_features is None):
        raise FacetrainError("give --features and --second-features together, or --model")
    first = open_set(flags.first, flags.format)
    second = open_set(flags.second, flags.format)
    folder = output_folder("data-overlap", flags.out, flags.first, flags.second)
    sets = {}
    facts = {}
    for name, source, of in (
        ("first", first, flags),
        ("second", second, replace(flags, features=flags.second_features, save_features=None)),
    ):
        embedded = embed_set(of, source)
        centers = identity_centers(embedded.embeddings, source.labels, len(source.identities))
        sets[name] = centers, build_index(centers.unit(), flags.search)
        path = flags.first if name == "first" else flags.second
        facts[name] = f"{path} ({len(source):,} images of {len(centers.present):,} identities)"
        facts.update(
            {
                key if key != "features" else f"{name} features": v
                for key, v in embedded.facts.items()
            }
        )
    threshold, told = _threshold(flags, list(sets.values()))
    facts["threshold"] = told
    facts["search"] = sets["second"][1].describe()
    pairs = shared_identities(sets["first"][0], *sets["second"], threshold)
    write_list(
        folder / OVERLAP_FILE,
        ("identity", "second_identity", "cosine", "num_images", "second_num_images"),
        (
            (
                first.identities[left],
                second.identities[right],
                f"{cosine:.4f}",
                sets["first"][0].counts[left],
                sets["second"][0].counts[right],
            )
            for left, right, cosine in _rows(pairs)
        ),
    )
    same_name = sum(first.identities[a] == second.identities[b] for a, b, _ in _rows(pairs))
    table = Table(
        ("found", "number"),
        [
            ("of the first set, in the second", f"{len(set(pairs.left.tolist())):,}"),
            ("of the second set, in the first", f"{len(set(pairs.right.tolist())):,}"),
            ("pairs", f"{len(pairs):,}"),
            ("pairs of one name", f"{same_name:,}"),
        ],
        f"listed in {OVERLAP_FILE}",
    )
    print(Facts(facts).to_text(), table.to_text(), sep="\n\n")
    write_report(
        folder,
        f"People in both {flags.first.name} and {flags.second.name}",
        [Section("Result", [Facts(facts), table]), *_review(first, second, pairs)],
        summary=f"facetrain data overlap {flags.first} {flags.second}",
        flags=flags,
        results={
            "threshold": threshold,
            "num_pairs": len(pairs),
            "num_first": len(set(pairs.left.tolist())),
            "num_second": len(set(pairs.right.tolist())),
        },
    )
    return 0


def _threshold(
    flags: OverlapFlags, sets: Sequence[tuple[Centers, SearchIndex]]
) -> tuple[float, str]:
    """The flag's, or the higher of what the sets themselves call for; and what to say of it."""
    if flags.threshold is not None:
        return flags.threshold, f"cosine {flags.threshold:g} (--threshold)"
    measurable = [pair for pair in sets if len(pair[1].embeddings) >= MIN_IDENTITIES]
    if not measurable:
        raise FacetrainError(
            f"both sets have fewer than {MIN_IDENTITIES} identities, too few to see how alike "
            "strangers look; give --threshold"
        )
    levels = [measure_levels(*pair) for pair in measurable]
    highest = max(levels, key=lambda level: level.perhaps_same_person)
    told = (
        f"cosine {highest.perhaps_same_person:.3f}, the nearest identities' median and three "
        f"standard deviations ({highest.describe()})"
    )
    return highest.perhaps_same_person, told


def _rows(pairs: AlikePairs) -> list[tuple[int, int, float]]:
    return list(zip(pairs.left.tolist(), pairs.right.tolist(), pairs.cosines.tolist(), strict=True))


def _review(first: FaceSource, second: FaceSource, pairs: AlikePairs) -> list[Section]:
    if not len(pairs):
        return []
    first_rows, second_rows = Rows(first.labels), Rows(second.labels)
    shown = [
        PictureRow(
            f"{first.identities[left]} | {second.identities[right]}, cosine {cosine:.3f}",
            [
                *(picture_of(first, r, "(first)") for r in first_rows.of(left, _NUM_PICTURES)),
                *(picture_of(second, r, "(second)") for r in second_rows.of(right, _NUM_PICTURES)),
            ],
        )
        for left, right, cosine in _rows(pairs)[: -_NUM_PAIRS - 1 : -1]
    ]
    text = (
        "The least alike come first: the further down, the surer. Remove from "
        f"{OVERLAP_FILE} the lines of people who are two."
    )
    heading = shown_of("Pairs to review", len(pairs), _NUM_PAIRS)
    return [Section(heading, [Text(text), Pictures(shown)])]
