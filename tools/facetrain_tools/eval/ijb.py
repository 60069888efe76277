"""`facetrain eval ijb --meta DIR --model X --images DIR`: IJB-B and IJB-C, 1:1 and 1:N.

DIR of --meta holds the meta files, --images the loose crops, which are aligned with the five points
of the meta files. With --features there is one row per face of the meta file in place of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain.evaluation.ijb import (
    FAR_TARGETS,
    RANKS,
    GallerySearch,
    TemplateVerification,
    search_galleries,
    verify_templates,
)
from facetrain.evaluation.templates import POOLINGS, Templates, pool_templates
from facetrain.report import Block, Facts, Figure, Section, Table, curves
from facetrain.report.tables import far_text, percent, tar_table, threshold_table
from facetrain_datasets.decode import decode_photo
from facetrain_datasets.file_bytes import read_image_file
from facetrain_datasets.prepare.alignment import align
from facetrain_datasets.protocols.ijb import IjbFaces, IjbMeta, open_ijb
from facetrain_tools.embedding import EmbeddingFlags, embed
from facetrain_tools.eval.sections import curve_figures, print_blocks, results, worst_sections
from facetrain_tools.output import output_folder, write_report


@dataclass(frozen=True, kw_only=True)
class IjbFlags(EmbeddingFlags):
    """IJB-B or IJB-C: verification of template pairs, and search in the two galleries."""

    meta: Path
    """Folder of the meta files: *_face_tid_mid.txt, *_template_pair_label.txt, ..."""
    images: Path | None = None
    """Folder of the loose crops, which are aligned here; not needed with --features."""
    task: Literal["both", "1:1", "1:N"] = "both"
    """What to evaluate."""
    pooling: str = "media-score"
    """How faces become a template: media-score (the public protocol), media, media-unit,
    media-unit-score, mean, mean-unit."""
    far: tuple[float, ...] = FAR_TARGETS
    """FARs to report TAR at."""
    far_rule: Literal["honest", "nearest"] = "honest"
    """TAR at the largest FAR that is at most the target, or at the nearest as a public script."""
    search: str = "auto"
    """Search engine for 1:N: auto, faiss, torch, ivf, hnsw."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


@dataclass(frozen=True)
class AlignedCrops(Sequence[np.ndarray]):
    """Faces of loose crops, uint8 RGB [112, 112, 3], aligned when asked for."""

    root: Path
    faces: IjbFaces

    def __len__(self) -> int:
        return len(self.faces)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        path = str(self.root / self.faces.names[index])
        return align(decode_photo(read_image_file(path), path), self.faces.points[index])


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval ijb` with the flags given; the exit code."""
    return run_ijb(parse_flags(IjbFlags, arguments, "facetrain eval ijb"))


def run_ijb(flags: IjbFlags) -> int:
    """Evaluates, prints, and writes the report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    if flags.pooling not in POOLINGS:
        raise FacetrainError(
            f"--pooling {flags.pooling}: unknown; choose one of {', '.join(POOLINGS)}"
        )
    if flags.model is not None and flags.images is None:
        raise FacetrainError("--model embeds the loose crops; give their folder with --images")
    meta = open_ijb(flags.meta)
    faces = meta.faces()
    folder = output_folder("eval-ijb", flags.out)
    crops = AlignedCrops(flags.images or flags.meta, faces)
    embedded = embed(flags, crops, faces.names)
    templates = pool_templates(
        embedded.embeddings, faces.templates, faces.media, faces.scores, flags.pooling
    )
    facts = {
        "set": f"{meta.prefix} in {flags.meta} ({len(faces):,} faces, {len(templates.ids):,} "
        "templates)",
        **embedded.facts,
        "pooling": flags.pooling,
        "FAR rule": flags.far_rule,
    }
    figures: dict[str, Any] = {}
    blocks: list[Facts | Table] = [Facts(facts)]
    sections: list[Section] = []
    summary = []
    roc = None
    if flags.task != "1:N":
        verified = _verify(meta, templates, flags)
        roc = verified.scores.roc
        figures["verification"] = verified.scores.to_dict()
        tables = [tar_table({"1:1": verified.scores}), threshold_table(verified.scores)]
        blocks += tables
        sections += _verification_sections(verified, tables, templates, faces, flags)
        summary += [
            f"TAR@FAR={far_text(point.far_target)} {percent(point.tar)}"
            for point in verified.scores.tar_at_far
            if point.tar is not None and point.far_target in (1e-4, 1e-5)
        ]
    if flags.task != "1:1":
        found = _search(meta, templates, flags)
        facts["search"] = next(iter(found.galleries.values())).search
        figures["identification"] = {
            **{name: result.to_dict() for name, result in found.galleries.items()},
            "mean": found.mean(),
        }
        table = gallery_table(found)
        blocks.append(table)
        sections.append(Section("1:N", _identification_blocks(found, table)))
        summary.append(f"rank-1 {percent(found.mean()['rank']['1'])}")
    print_blocks(blocks)
    write_report(
        folder,
        f"{meta.prefix.upper()} of {(flags.model or flags.features or flags.meta).name}",
        [*sections, Section("What was used", [Facts(facts)])],
        summary=", ".join(summary),
        flags=flags,
        results=results("ijb", facts, figures, roc),
    )
    return 0


def _verify(meta: IjbMeta, templates: Templates, flags: IjbFlags) -> TemplateVerification:
    pairs = ((block.left, block.right, block.is_same) for block in meta.pairs())
    return verify_templates(templates, pairs, flags.far, flags.far_rule)


def _search(meta: IjbMeta, templates: Templates, flags: IjbFlags) -> GallerySearch:
    probes = meta.probes()
    return search_galleries(
        templates,
        {gallery.name: (gallery.templates, gallery.subjects) for gallery in meta.galleries()},
        (probes.templates, probes.subjects),
        flags.search,
    )


def gallery_table(found: GallerySearch) -> Table:
    """Rank rates and TPIR at FPIR of each gallery, and their mean."""
    mean = found.mean()
    ranks = [rank for rank in RANKS if str(rank) in mean["rank"]]
    points = mean["tpir_at_fpir"]

    def row(name: str, rates: list[float | None]) -> tuple[str, ...]:
        return name, *("n/a" if rate is None else percent(rate) for rate in rates)

    return Table(
        header=(
            "gallery",
            *(f"rank-{rank}" for rank in ranks),
            *(f"TPIR@FPIR={far_text(point['far_target'])}" for point in points),
        ),
        rows=[
            *(
                row(
                    name,
                    [
                        *(float(result.cmc[rank - 1]) for rank in ranks),
                        *(point.tar for point in result.dir_at_far),
                    ],
                )
                for name, result in found.galleries.items()
            ),
            row("mean", [*mean["rank"].values(), *(point["tar"] for point in points)]),
        ],
        caption="TPIR: mated probes found at rank 1 and accepted; FPIR: probes of the other "
        "gallery's subjects who find anyone",
    )


def _verification_sections(
    verified: TemplateVerification,
    tables: Sequence[Table],
    templates: Templates,
    faces: IjbFaces,
    flags: IjbFlags,
) -> list[Section]:
    scores, root = verified.scores, flags.images
    names = [f"template {template}" for template in templates.ids.tolist()]

    def read(row: int) -> bytes:
        assert root is not None
        return read_image_file(str(root / faces.names[int(templates.first_face[row])]))

    return [
        Section("1:1", tables),
        Section(
            "Curves",
            [
                *curve_figures({"1:1": scores.roc}),
                Figure(
                    curves.score_histogram(scores.genuine, scores.impostor), "Scores of all pairs"
                ),
            ],
        ),
        *worst_sections(verified.worst, names, None if root is None else read),
    ]


def _identification_blocks(found: GallerySearch, table: Table) -> list[Block]:
    blocks: list[Block] = [
        table,
        Figure(
            curves.cmc_curves({name: result.cmc for name, result in found.galleries.items()}),
            "CMC: share of mated probes found within each rank",
        ),
    ]
    open_galleries = {name: r for name, r in found.galleries.items() if len(r.unmated)}
    if open_galleries:
        blocks.append(
            Figure(
                curves.dir_curves(open_galleries),
                "Share of mated probes found first and accepted, over the share of unmated probes "
                "who find anyone",
            )
        )
    return blocks
