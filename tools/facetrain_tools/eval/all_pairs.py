"""`facetrain eval all-pairs --data PATH --model X`: every image of a data set against every other.

The way of the MFR challenge, on any data set: all genuine and all impostor pairs are scored and
counted, in bounded memory, so that TAR can be read at FARs down to 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain.evaluation.all_pairs import FAR_TARGETS, AllPairsResult, compare_all
from facetrain.report import Facts, Figure, Section, curves
from facetrain.report.tables import far_text, percent, tar_table, threshold_table
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats import open_faces
from facetrain_datasets.protocols.feature_files import read_features
from facetrain_datasets.selected_faces import select_identities
from facetrain_tools.embedding import EmbeddingFlags, embed
from facetrain_tools.eval.sections import (
    SourceNames,
    curve_figures,
    print_blocks,
    results,
    worst_sections,
)
from facetrain_tools.output import output_folder, write_report
from facetrain_tools.progress import progress


@dataclass(frozen=True, kw_only=True)
class FacesFlags(EmbeddingFlags):
    """A labelled set of faces: --data with --model or --features, or --features with identities."""

    data: Path | None = None
    """Data set in any format; not needed where --features tell the identities."""
    min_images: int = 1
    """Identities with fewer images are left out."""


@dataclass(frozen=True, kw_only=True)
class AllPairsFlags(FacesFlags):
    """Compare every image with every other."""

    far: tuple[float, ...] = FAR_TARGETS
    """FARs to report TAR at."""
    far_rule: Literal["honest", "nearest"] = "honest"
    """TAR at the largest FAR that is at most the target, or at the one nearest to it."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


@dataclass(frozen=True, eq=False)
class LabelledFaces:
    """Embeddings [M, D] with labels, and what is needed to show their images."""

    embeddings: np.ndarray
    labels: np.ndarray
    names: Sequence[str]
    read: Callable[[int], bytes] | None
    facts: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval all-pairs` with the flags given; the exit code."""
    return run_all_pairs(parse_flags(AllPairsFlags, arguments, "facetrain eval all-pairs"))


def run_all_pairs(flags: AllPairsFlags) -> int:
    """Evaluates, prints, and writes the report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    folder = output_folder("eval-all-pairs", flags.out, *filter(None, [flags.data]))
    faces = labelled_faces(flags)
    result = compare_faces(faces, flags.far, flags.far_rule)
    facts = {**faces.facts, **pair_facts(result), "FAR rule": flags.far_rule}
    name = (flags.model or flags.features or Path("faces")).name
    tables = [tar_table({name: result.scores}), threshold_table(result.scores)]
    print_blocks([Facts(facts), *tables])
    measured = [point for point in result.scores.tar_at_far if point.tar is not None]
    lowest = min(measured, key=lambda point: point.far_target, default=None)
    write_report(
        folder,
        f"All pairs of {(flags.data or flags.features or Path('faces')).name}",
        [
            Section("Result", tables),
            Section("Curves", count_figures(name, result)),
            *worst_sections(result.worst, faces.names, faces.read),
            Section("What was used", [Facts(facts)]),
        ],
        summary=""
        if lowest is None or lowest.tar is None
        else f"TAR {percent(lowest.tar)} at FAR {far_text(lowest.far_target)}",
        flags=flags,
        results=results("all-pairs", facts, result.to_dict(), result.scores.roc),
    )
    return 0


def labelled_faces(flags: FacesFlags) -> LabelledFaces:
    """Embeddings and labels of --data, or of --features alone.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    if flags.data is None:
        if flags.features is None or flags.model is not None:
            raise FacetrainError("give --data with --model or --features")
        features = read_features(flags.features)
        if features.identities is None:
            raise FacetrainError(
                f"features {flags.features}: tell no identities; give the data set with --data"
            )
        names = features.names or [f"row {row}" for row in range(len(features))]
        identities, labels = np.unique(np.array(features.identities), return_inverse=True)
        facts = {"features": f"{flags.features} ({len(labels):,} of {len(identities):,} people)"}
        return LabelledFaces(features.embeddings, labels, names, None, facts)
    whole = open_faces(flags.data)
    source = select_identities(whole, min_images=flags.min_images)
    if flags.features is None:
        embedded = embed(flags, DecodedImages.of_source(source))
        embeddings = embedded.embeddings
    else:  # they are of all images
        embedded = embed(flags, DecodedImages.of_source(whole))
        counts = np.bincount(whole.labels, minlength=len(whole.identities))
        embeddings = embedded.embeddings[counts[whole.labels] >= flags.min_images]
    people = f"{len(source):,} images of {len(source.identities):,} identities"
    return LabelledFaces(
        embeddings,
        np.asarray(source.labels),
        SourceNames(source),
        source.read,
        {"data": f"{flags.data} ({people})", **embedded.facts},
    )


def compare_faces(
    faces: LabelledFaces, far_targets: Sequence[float], far_rule: str
) -> AllPairsResult:
    """All pairs, with a progress bar."""
    with progress("comparing", len(faces.labels)) as done:
        return compare_all(
            faces.embeddings,
            faces.labels,
            far_targets=far_targets,
            far_rule=far_rule,
            progress=done,
        )


def pair_facts(result: AllPairsResult) -> dict[str, str]:
    """What the figures of all pairs depend on."""
    roc = result.scores.roc
    return {
        "pairs": f"{roc.num_genuine:,} genuine, {roc.num_impostor:,} impostor: all there are",
        "thresholds": f"cosine of unit embeddings, in steps of {result.resolution:.2g}; the counts "
        "at each are exact",
        "compared on": result.device,
    }


def count_figures(name: str, result: AllPairsResult) -> list[Figure]:
    """ROC, DET and the histogram of the counts."""
    return [
        *curve_figures({name: result.scores.roc}),
        Figure(curves.count_histogram(result.genuine, result.impostor), "Scores of all pairs"),
    ]
