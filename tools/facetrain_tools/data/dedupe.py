"""`facetrain data dedupe PATH [--model X]`: photographs that are in a set more than once.

Exact copies by the bytes of the files; near copies (encoded, scaled or cut anew) where a model or
features are given. Writes duplicates.csv, which names all of a group but the first, and a page.
Nothing is deleted: `facetrain data select PATH OUT --without duplicates.csv` writes the rest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.curation.duplicates import (
    DuplicatePairs,
    exact_pairs,
    group_duplicates,
    near_pairs,
)
from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.search import build_index
from facetrain.report import Facts, PictureRow, Pictures, Section, Table, Text
from facetrain_datasets.decode import decode_photo
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.source import FaceSource
from facetrain_tools.data.lists import IMAGE_COLUMNS, image_cells, write_list
from facetrain_tools.data.pictures import picture_of, shown_of
from facetrain_tools.data.sets import SetFlags, embed_set, open_set
from facetrain_tools.output import output_folder, write_report
from facetrain_tools.progress import progress

DUPLICATES_FILE = "duplicates.csv"

_CHUNK = 256
_NUM_GROUPS = 60
_NUM_PICTURES = 8


@dataclass(frozen=True, kw_only=True)
class DedupeFlags(SetFlags):
    """Find photographs that are there more than once."""

    path: tyro.conf.Positional[Path]
    """Folder of identities, .rec, .tar, .parquet, or list."""
    min_cosine: float = 0.88
    """Images with embeddings at least this alike may be copies, and are where"""
    min_agreement: float = 0.93
    """their pictures, small, grey, perhaps mirrored, have at least this correlation."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain data dedupe` with the flags given; the exit code."""
    return run_dedupe(parse_flags(DedupeFlags, arguments, "facetrain data dedupe"))


def run_dedupe(flags: DedupeFlags) -> int:
    """Searches, prints, writes list and report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    source = open_set(flags.path, flags.format)
    folder = output_folder("data-dedupe", flags.out, flags.path)
    exact = exact_pairs(content_digests(source))
    facts = {"data": f"{flags.path} ({len(source):,} images)", "exact copies": "equal bytes"}
    near = exact_pairs(np.empty((0, 2), np.uint64))
    if flags.model is not None or flags.features is not None:
        near, more = _near(flags, source)
        facts.update(more)
    else:
        facts["near copies"] = "not looked for; give --model or --features"
    pairs = _joined(exact, near)
    groups = group_duplicates(pairs)
    # What links a copy to its group: its pair with an earlier image, else with a later one.
    link_of = {
        row: link for rows in (pairs.first, pairs.second) for link, row in enumerate(rows.tolist())
    }
    copies = [(row, group[0]) for group in map(np.ndarray.tolist, groups) for row in group[1:]]
    is_exact = np.isin([row for row, _ in copies], exact.second)
    crosses = [source.labels[row] != source.labels[first] for row, first in copies]
    write_list(
        folder / DUPLICATES_FILE,
        (*IMAGE_COLUMNS, "finding", "first_image", "first_identity", "cosine", "agreement"),
        (
            (
                *image_cells(source, row),
                "exact copy" if exact_ else "near copy",
                *image_cells(source, first)[1:],
                f"{pairs.cosines[link_of[row]]:.4f}",
                f"{pairs.agreements[link_of[row]]:.4f}",
            )
            for (row, first), exact_ in zip(copies, is_exact.tolist(), strict=True)
        ),
    )
    num_crossing = sum(len(set(source.labels[group].tolist())) > 1 for group in groups)
    table = Table(
        ("found", "number"),
        [
            ("groups of copies", f"{len(groups):,}"),
            ("exact copies to leave out", f"{int(is_exact.sum()):,}"),
            ("near copies to leave out", f"{len(copies) - int(is_exact.sum()):,}"),
            ("groups under several identities", f"{num_crossing:,}"),
            ("copies under another identity than their first", f"{sum(crosses):,}"),
        ],
        f"listed in {DUPLICATES_FILE}: all of a group but the first",
    )
    print(Facts(facts).to_text(), table.to_text(), sep="\n\n")
    write_report(
        folder,
        f"Duplicates in {flags.path.name}",
        [
            Section("Result", [Facts(facts), table]),
            *_group_sections(source, groups, is_exact, copies),
        ],
        summary=f"facetrain data dedupe {flags.path}",
        flags=flags,
        results={
            "num_images": len(source),
            "num_groups": len(groups),
            "num_exact_copies": int(is_exact.sum()),
            "num_near_copies": len(copies) - int(is_exact.sum()),
            "num_groups_of_several_identities": num_crossing,
        },
    )
    return 0


def content_digests(source: FaceSource) -> np.ndarray:
    """uint64 [N, 2], a 128-bit BLAKE2 hash of each image's bytes."""
    digests = np.empty((len(source), 2), np.uint64)

    def hash_chunk(start: int) -> int:
        stop = min(start + _CHUNK, len(source))
        for index in range(start, stop):
            digest = hashlib.blake2b(source.read(index), digest_size=16).digest()
            digests[index] = np.frombuffer(digest, np.uint64)
        return stop

    with progress("hashing", len(source)) as done, ThreadPoolExecutor(os.cpu_count()) as pool:
        for stop in pool.map(hash_chunk, range(0, len(source), _CHUNK)):
            done(stop)
    return digests


def _near(flags: DedupeFlags, source: FaceSource) -> tuple[DuplicatePairs, dict[str, str]]:
    embedded = embed_set(flags, source)
    index = build_index(unit_embeddings(embedded.embeddings), flags.search)

    def read_image(row: int) -> np.ndarray:
        try:
            return decode_photo(source.read(row), source.describe(row))
        except DatasetError as error:
            raise FacetrainError(f"{error} (facetrain data inspect lists all)") from error

    with progress("searching", len(source)) as done:
        pairs = near_pairs(
            index,
            read_image,
            min_cosine=flags.min_cosine,
            min_agreement=flags.min_agreement,
            progress=done,
        )
    return pairs, {
        "near copies": f"cosine at least {flags.min_cosine:g} and pictures that agree by at least "
        f"{flags.min_agreement:g}",
        **embedded.facts,
        "search": index.describe(),
    }


def _joined(exact: DuplicatePairs, near: DuplicatePairs) -> DuplicatePairs:
    """Both, the exact ones last: they say what is known of a copy that is both."""
    return DuplicatePairs(
        *(
            np.concatenate([getattr(near, name), getattr(exact, name)])
            for name in ("first", "second", "cosines", "agreements")
        )
    )


def _group_sections(
    source: FaceSource,
    groups: Sequence[np.ndarray],
    is_exact: np.ndarray,
    copies: Sequence[tuple[int, int]],
) -> list[Section]:
    exact_rows = {row for (row, _), exact in zip(copies, is_exact.tolist(), strict=True) if exact}

    def rows(chosen: Sequence[np.ndarray]) -> Pictures:
        shown = []
        for group in chosen[:_NUM_GROUPS]:
            notes = ["stays", *("exact" if r in exact_rows else "near" for r in group[1:].tolist())]
            pictures = [
                picture_of(source, row, f"({note})")
                for row, note in zip(group[:_NUM_PICTURES].tolist(), notes, strict=False)
            ]
            title = f"{len(group)} images, {_NUM_PICTURES} shown" * (len(group) > _NUM_PICTURES)
            shown.append(PictureRow(title, pictures))
        return Pictures(shown)

    crossing = [group for group in groups if len(set(source.labels[group].tolist())) > 1]
    within = [group for group in groups if len(set(source.labels[group].tolist())) == 1]
    sections = []
    for title, chosen, text in (
        (
            "One photograph, several identities",
            crossing,
            "At least one of the names is wrong; which one, a person must say.",
        ),
        ("Copies within an identity", within, "The first stays; the others are in the list."),
    ):
        if chosen:
            heading = shown_of(title, len(chosen), _NUM_GROUPS)
            sections.append(Section(heading, [Text(text), rows(chosen)]))
    return sections
