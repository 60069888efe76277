"""`facetrain eval calibrate --data PATH --model X`: decision thresholds per FAR, in a file.

All pairs of the data set are compared; with --pairs, those of a list. `facetrain eval verification
--thresholds FILE` then says what the thresholds accept on other pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from facetrain.command import parse_flags
from facetrain.evaluation import verify
from facetrain.evaluation.all_pairs import FAR_TARGETS
from facetrain.evaluation.metrics import RateReport
from facetrain.evaluation.thresholds import Thresholds
from facetrain.evaluation.verification import check_both_kinds
from facetrain.report import Facts, Figure, Section, curves
from facetrain.report.tables import tar_table, threshold_table
from facetrain_datasets.protocols import open_pairs
from facetrain_tools.embedding import embed
from facetrain_tools.eval.all_pairs import (
    FacesFlags,
    compare_faces,
    count_figures,
    labelled_faces,
    pair_facts,
)
from facetrain_tools.eval.sections import curve_figures, print_blocks, results
from facetrain_tools.output import output_folder, write_report

THRESHOLDS_FILE = "thresholds.json"


@dataclass(frozen=True, kw_only=True)
class CalibrateFlags(FacesFlags):
    """Find the thresholds for given FARs and write them to a file."""

    pairs: Path | None = None
    """Only the pairs of this list (as for `eval verification`), whose images --data holds."""
    far: tuple[float, ...] = FAR_TARGETS
    """FARs to find thresholds for; those that cannot be measured are left out."""
    to: Path | None = None
    """The file; default: thresholds.json beside the report."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval calibrate` with the flags given; the exit code."""
    return run_calibrate(parse_flags(CalibrateFlags, arguments, "facetrain eval calibrate"))


def run_calibrate(flags: CalibrateFlags) -> int:
    """Measures, prints, and writes thresholds and report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    folder = output_folder("eval-calibrate", flags.out, *filter(None, [flags.data]))
    name = (flags.model or flags.features or Path("faces")).name
    report, figures, facts = _measured(flags, name)
    thresholds = Thresholds.of(report, facts)
    path = flags.to or folder / THRESHOLDS_FILE
    thresholds.save(path)
    table = threshold_table(report)
    print_blocks([Facts(facts), table])
    print(f"\nthresholds  {path.resolve()}")
    write_report(
        folder,
        f"Thresholds of {name}",
        [
            Section("Thresholds", [table, tar_table({name: report})]),
            Section("Curves", figures),
            Section("What was used", [Facts({**facts, "file": str(path)})]),
        ],
        summary=f"{len(thresholds.points)} thresholds in {path}",
        flags=flags,
        results=results("calibrate", facts, report.to_dict(), report.roc),
    )
    return 0


def _measured(flags: CalibrateFlags, name: str) -> tuple[RateReport, list[Figure], dict[str, str]]:
    if flags.pairs is None:
        faces = labelled_faces(flags)
        result = compare_faces(faces, flags.far, "honest")
        facts = {**faces.facts, **pair_facts(result)}
        return result.scores, count_figures(name, result), facts
    pairs = open_pairs(flags.pairs, flags.data)
    check_both_kinds(pairs.is_same, f"{flags.pairs}: pairs")
    embedded = embed(flags, pairs.images(), pairs.names)
    scores = verify(
        embedded.embeddings, pairs.left, pairs.right, pairs.is_same, far_targets=flags.far
    ).scores
    histogram = Figure(curves.score_histogram(scores.genuine, scores.impostor), "Scores")
    facts = {"pairs": f"{flags.pairs} ({len(pairs):,} pairs)", **embedded.facts}
    return scores, [*curve_figures({name: scores.roc}), histogram], facts
