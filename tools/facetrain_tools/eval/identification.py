"""`facetrain eval identification --gallery A --probes B [--distractors C ...]`: who is it?

Each of A, B, C is a data set in any format, embedded by --model, or a file or folder of features
(.npz with identities, MegaFace .bin files; distractors also .npy). Distractors in feature files are
searched block by block, so there may be more than fit into memory. Without --gallery the protocol
is MegaFace's: each probe is searched for each other image of its identity amid the distractors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.extremes import WorstPairs
from facetrain.evaluation.open_set import (
    FAR_TARGETS,
    MAX_RANK,
    OpenSetResult,
    identify,
    identify_amid_distractors,
)
from facetrain.evaluation.search import (
    SEARCH_BACKENDS,
    SearchIndex,
    build_index,
    recall,
    search_blocks,
)
from facetrain.evaluation.templates import pool_templates
from facetrain.report import Block, Facts, Figure, Section, Table, curves
from facetrain.report.tables import far_text, percent, threshold_texts
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats import open_faces
from facetrain_datasets.protocols.feature_files import Features, is_feature_path, read_features
from facetrain_datasets.source import FaceSource
from facetrain_tools.embedding import ModelFlags, embed_with_model
from facetrain_tools.eval.sections import SourceNames, print_blocks, results, worst_sections
from facetrain_tools.output import output_folder, write_report

_ROWS_PER_BLOCK = 250_000
_RECALL_PROBES = 256
_LARGEST_RANK = 1_000_000
_SHOWN_RANKS = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class IdentificationFlags(ModelFlags):
    """Search probes in a gallery, with any number of distractors."""

    probes: Path
    """Data set or features of the faces to search for."""
    gallery: Path | None = None
    """Data set or features of the enrolled; none: MegaFace's protocol."""
    distractors: tuple[Path, ...] = ()
    """Data sets or features of others, who are enrolled too."""
    enrol: Literal["all", "mean"] = "all"
    """Enrol every image (the best of an identity counts), or the mean of each identity."""
    max_rank: int = MAX_RANK
    """Largest rank of the CMC."""
    far: tuple[float, ...] = FAR_TARGETS
    """Shares of probes who are not enrolled and find anyone, to report DIR at."""
    search: str = "auto"
    """Search engine: auto, faiss, torch (these are exact), ivf, hnsw."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


@dataclass(frozen=True, eq=False)
class _Faces:
    """Unit embeddings [N, D], the identity and the name of each, and how to read its image."""

    unit: np.ndarray
    identities: Sequence[str]
    names: Sequence[str]
    read: Callable[[int], bytes] | None


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval identification` with the flags given; the exit code."""
    return run_identification(
        parse_flags(IdentificationFlags, arguments, "facetrain eval identification")
    )


def run_identification(flags: IdentificationFlags) -> int:
    """Evaluates, prints, and writes the report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    if flags.search not in ("auto", *SEARCH_BACKENDS):
        known = ", ".join(("auto", *SEARCH_BACKENDS))
        raise FacetrainError(f"--search {flags.search}: unknown; choose one of {known}")
    if flags.gallery is None and not flags.distractors:
        raise FacetrainError("give --gallery, --distractors, or both")
    if not 1 <= flags.max_rank <= _LARGEST_RANK:
        raise FacetrainError(f"--max-rank {flags.max_rank}: must be 1 to {_LARGEST_RANK}")
    for path in (flags.probes, *filter(None, [flags.gallery]), *flags.distractors):
        if flags.model is None and path.exists() and not is_feature_path(path):
            raise FacetrainError(f"{path}: images, not features; give --model to embed them")
    folder = output_folder("eval-identification", flags.out)
    facts: dict[str, str] = {}
    probes = _faces(flags.probes, flags, facts)
    gallery = None if flags.gallery is None else _faces(flags.gallery, flags, facts)
    numbers = {
        name: number
        for number, name in enumerate(
            sorted({*probes.identities, *(gallery.identities if gallery else ())})
        )
    }
    probe_ids = np.array([numbers[name] for name in probes.identities], dtype=np.int64)
    distractors = [
        read_features(path) if is_feature_path(path) else open_faces(path)
        for path in flags.distractors
    ]
    sizes = {
        path: part.size
        for path, part in zip(flags.distractors, distractors, strict=True)
        if isinstance(part, Features)
    }
    if gallery is not None and flags.gallery is not None:
        sizes[flags.gallery] = gallery.unit.shape[1]
    for where, size in sizes.items():
        if size != probes.unit.shape[1]:
            raise FacetrainError(
                f"{where}: embeddings of {size} numbers, those of {flags.probes} have "
                f"{probes.unit.shape[1]}; embed both with one model"
            )
    num_distractors = sum(map(len, distractors))
    distractor_scores = None
    if distractors:
        distractor_scores, _ = search_blocks(
            _unit_blocks(distractors, flags, facts),
            probes.unit,
            min(flags.max_rank, num_distractors),
            _exact(flags.search),
        )
        facts["distractors"] = (
            f"{', '.join(map(str, flags.distractors))} ({num_distractors:,} images), searched "
            "exactly"
        )
    if gallery is None:
        assert distractor_scores is not None
        protocol = "MegaFace: each probe for each other image of its identity amid the distractors"
        # An approximate engine would be built anew for every block, so blocks are compared exactly.
        search = f"{build_index(probes.unit[:1], _exact(flags.search)).describe()}, block by block"
        result = identify_amid_distractors(
            probes.unit, probe_ids, distractor_scores, num_distractors, search, flags.max_rank
        )
    else:
        protocol = f"gallery and probes; enrolled: {flags.enrol}"
        images = np.arange(len(gallery.unit))
        gallery_ids = np.array([numbers[name] for name in gallery.identities], dtype=np.int64)
        enrolled = gallery.unit
        if flags.enrol == "mean":
            ones = np.ones(len(enrolled))
            pooled = pool_templates(enrolled, gallery_ids, gallery_ids, ones, "mean-unit")
            enrolled, gallery_ids, images = pooled.unit, pooled.ids, pooled.first_face
        index = build_index(enrolled, flags.search)
        if not index.exact:
            facts["recall"] = _recall(index, enrolled, probes.unit)
        result = identify(
            index,
            gallery_ids,
            probes.unit,
            probe_ids,
            distractor_scores=distractor_scores,
            num_distractors=num_distractors,
            max_rank=flags.max_rank,
            far_targets=flags.far,
        )
    facts = {"protocol": protocol, **facts, "search": result.search}
    tables = [rank_table(result)]
    if gallery is not None:
        tables.append(detection_table(result))
    print_blocks([Facts(facts), *tables])
    worst = [] if gallery is None else _worst_sections(result, probes, gallery, images)
    write_report(
        folder,
        f"Identification of {flags.probes.name}",
        [
            Section("Result", tables),
            Section("Curves", _figures(result)),
            *worst,
            Section("What was used", [Facts(facts)]),
        ],
        summary=f"rank-1 {percent(float(result.cmc[0]))} of {len(result.genuine):,} searches",
        flags=flags,
        results=results("identification", facts, result.to_dict()),
    )
    return 0


def rank_table(result: OpenSetResult) -> Table:
    """Rank rates of the mated probes."""
    shown = [rank for rank in _SHOWN_RANKS if rank <= len(result.cmc)]
    return Table(
        header=("searches", *(f"rank-{rank}" for rank in shown), "enrolled", "distractors"),
        rows=[
            (
                f"{len(result.genuine):,}",
                *(percent(float(result.cmc[rank - 1])) for rank in shown),
                f"{result.num_gallery:,}",
                f"{result.num_distractors:,}",
            )
        ],
        caption="a tie counts against the probe",
    )


def detection_table(result: OpenSetResult) -> Table:
    """Open set: DIR at each FAR, with thresholds."""
    return Table(
        header=("target FAR", "DIR", "FAR", "cosine >=", "squared L2 <="),
        rows=[
            (far_text(point.far_target), *("n/a",) * 4)
            if point.tar is None or point.far is None or point.threshold is None
            else (
                far_text(point.far_target),
                percent(point.tar),
                far_text(point.far),
                *threshold_texts(point.threshold),
            )
            for point in result.dir_at_far
        ],
        caption="DIR: mated probes found first and accepted; FAR: unmated probes who find anyone; "
        f"n/a: cannot be measured with {len(result.unmated):,} unmated probes",
    )


def _figures(result: OpenSetResult) -> list[Block]:
    figures: list[Block] = [
        Figure(curves.cmc_curves({"probes": result.cmc}), "CMC: share found within each rank")
    ]
    if len(result.unmated):
        figures += [
            Figure(
                curves.dir_curves({"probes": result}),
                "Share of mated probes found first and accepted (DIR), over the share of unmated "
                "probes who find anyone (FAR)",
            ),
            Figure(
                curves.score_histogram(result.genuine, result.unmated),
                "Genuine: scores of mated probes with their own identity; impostor: best scores "
                "of unmated probes",
            ),
        ]
    return figures


def _worst_sections(
    result: OpenSetResult, probes: _Faces, gallery: _Faces, images: np.ndarray
) -> list[Section]:
    """Worst pairs of a probe and an entry; `images` are rows of the gallery, one per entry."""
    num_probes = len(probes.unit)
    worst = WorstPairs(
        *(
            [pair._replace(right=num_probes + int(images[pair.right])) for pair in pairs]
            for pairs in result.worst
        )
    )

    def read(row: int) -> bytes:
        assert probes.read is not None
        assert gallery.read is not None
        return probes.read(row) if row < num_probes else gallery.read(row - num_probes)

    readable = probes.read is not None and gallery.read is not None
    names = [*probes.names, *gallery.names]
    return worst_sections(worst, names, read if readable else None)


def _faces(path: Path, flags: IdentificationFlags, facts: dict[str, str]) -> _Faces:
    """Probes or a gallery, with identities."""
    if is_feature_path(path):
        features = read_features(path)
        if features.identities is None:
            raise FacetrainError(
                f"features {path}: tell no identities; write an .npz with embeddings and "
                "identities, or MegaFace's folders"
            )
        names = features.names or [f"{path.name}, row {row}" for row in range(len(features))]
        faces = _Faces(unit_embeddings(features.embeddings), features.identities, names, None)
    else:
        source = open_faces(path)
        embedded = embed_with_model(flags, DecodedImages.of_source(source))
        facts.update(embedded.facts)
        faces = _Faces(
            unit_embeddings(embedded.embeddings),
            [source.identities[label] for label in source.labels.tolist()],
            SourceNames(source),
            source.read,
        )
    facts["probes" if path == flags.probes else "gallery"] = (
        f"{path} ({len(faces.unit):,} images of {len(set(faces.identities)):,} identities)"
    )
    return faces


def _unit_blocks(
    parts: Sequence[Features | FaceSource], flags: IdentificationFlags, facts: dict[str, str]
) -> Iterator[np.ndarray]:
    """Unit embeddings of all distractors, block by block."""
    for part in parts:
        if isinstance(part, Features):
            yield from map(unit_embeddings, part.blocks(_ROWS_PER_BLOCK))
        else:
            embedded = embed_with_model(flags, DecodedImages.of_source(part))
            facts.update(embedded.facts)
            yield unit_embeddings(embedded.embeddings)


def _exact(backend: str) -> str:
    return backend if backend == "auto" or SEARCH_BACKENDS[backend].exact else "auto"


def _recall(index: SearchIndex, enrolled: np.ndarray, probes: np.ndarray) -> str:
    chosen = probes[np.linspace(0, len(probes) - 1, min(_RECALL_PROBES, len(probes))).astype(int)]
    share = recall(index, build_index(enrolled), chosen, 1)
    return f"{percent(share)} of {len(chosen)} probes get their true nearest entry"
