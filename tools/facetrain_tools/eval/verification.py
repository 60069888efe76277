"""`facetrain eval verification --model X --pairs FILE [--data DIR]`: are both faces of one person?

Pairs are an LFW list, a table of pairs or a .bin set. Prints the accuracy with its interval, TAR at
FAR with thresholds, and everything the figures depend on: colour order, normalisation, flip,
distance, folds. Writes report.html and results.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from facetrain.command import parse_flags
from facetrain.evaluation import VerificationResult, verify
from facetrain.evaluation.bootstrap import DEFAULT_REPLICATES, Bootstrap, Interval, bootstrap
from facetrain.evaluation.extremes import worst_pairs
from facetrain.evaluation.metrics import FAR_TARGETS
from facetrain.evaluation.thresholds import AppliedThreshold
from facetrain.evaluation.verification import check_both_kinds
from facetrain.export import read_thresholds
from facetrain.report import Facts, Figure, Section, Table, curves
from facetrain.report.tables import far_text, percent, tar_table, threshold_table, threshold_texts
from facetrain_datasets.protocols import PairSet, open_pairs
from facetrain_tools.embedding import EmbeddingFlags, embed
from facetrain_tools.eval.sections import curve_figures, print_blocks, results, worst_sections
from facetrain_tools.output import output_folder, write_report

_DEFAULT_FOLDS = 10


@dataclass(frozen=True, kw_only=True)
class VerificationFlags(EmbeddingFlags):
    """Verify listed pairs: are both faces of one person?"""

    pairs: Path
    """An LFW list such as pairs.txt, a table left,right,same, or a .bin set."""
    data: Path | None = None
    """Folder that the names in the list start from; a .bin set has its own images."""
    folds: int | None = None
    """Folds of the accuracy; default: the list's, 10 where it has none."""
    far: tuple[float, ...] = FAR_TARGETS
    """FARs to report TAR at."""
    far_rule: Literal["honest", "nearest"] = "honest"
    """TAR at the largest FAR that is at most the target, or at the one nearest to it."""
    thresholds: Path | None = None
    """A file of `facetrain eval calibrate`, or an .onnx file with thresholds in it, to apply."""
    bootstrap: int = DEFAULT_REPLICATES
    """Draws for the 95 % intervals; 0 for none."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval verification` with the flags given; the exit code."""
    return run_verification(
        parse_flags(VerificationFlags, arguments, "facetrain eval verification")
    )


def run_verification(flags: VerificationFlags) -> int:
    """Evaluates, prints, and writes the report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    thresholds = None if flags.thresholds is None else read_thresholds(flags.thresholds)
    pairs = open_pairs(flags.pairs, flags.data)
    check_both_kinds(pairs.is_same, f"{flags.pairs}: pairs")
    folder = output_folder("eval-verification", flags.out)
    embedded = embed(flags, pairs.images(), pairs.names)
    num_folds = flags.folds
    if num_folds is None:
        num_folds = pairs.num_folds if pairs.num_folds > 1 else _DEFAULT_FOLDS
    result = verify(
        embedded.embeddings,
        pairs.left,
        pairs.right,
        pairs.is_same,
        num_folds,
        flags.far,
        flags.far_rule,
    )
    facts = {
        "pairs": f"{flags.pairs} ({len(pairs):,} pairs of {len(pairs.names):,} images)",
        **embedded.facts,
        "distance": "squared L2 of unit embeddings, d = 2 - 2 cos",
        "folds": f"{num_folds}, {result.fold_rule}",
        "FAR rule": flags.far_rule,
    }
    tables = [accuracy_table(result), threshold_table(result.scores)]
    figures: dict[str, Any] = result.to_dict()
    if flags.bootstrap:
        intervals = _intervals(pairs, result, flags.bootstrap)
        tables.insert(1, interval_table(result, intervals))
        figures["intervals"] = intervals.to_dict()
    if thresholds is not None:
        assert flags.thresholds is not None
        thresholds.check_usable_with(embedded.facts, flags.thresholds)
        applied = thresholds.apply(result.scores.genuine, result.scores.impostor)
        tables.append(applied_table(applied, f"{flags.thresholds}, {thresholds.origin()}"))
        figures["applied_thresholds"] = [
            {"far_target": a.far_target, "cosine": a.cosine, "far": a.far, "tar": a.tar}
            for a in applied
        ]
    print_blocks([Facts(facts), *tables])
    name = (flags.model or flags.features or flags.pairs).name
    write_report(
        folder,
        f"Verification of {name}",
        _sections(name, pairs, result, tables, facts),
        summary=f"{percent(result.accuracy)} +- {percent(result.accuracy_std)} on "
        f"{flags.pairs.name}",
        flags=flags,
        results=results("verification", facts, figures, result.scores.roc),
    )
    return 0


def accuracy_table(result: VerificationResult) -> Table:
    """The headline: accuracy over the folds, EER, AUC and the best threshold."""
    return Table(
        header=("accuracy", "+-", "EER", "AUC", "best cosine", "best squared L2"),
        rows=[
            (
                percent(result.accuracy),
                percent(result.accuracy_std),
                percent(result.scores.eer),
                f"{result.scores.auc:.4f}",
                *threshold_texts(result.threshold_cosine),
            )
        ],
        caption=f"accuracy: mean and standard deviation of {len(result.folds.accuracies)} folds; "
        "best: the threshold with the highest accuracy on all pairs",
    )


def interval_table(result: VerificationResult, intervals: Bootstrap) -> Table:
    """Each figure with the interval of its bootstrap."""

    def row(name: str, value: float | None, interval: Interval | None) -> tuple[str, str, str]:
        if value is None or interval is None:
            return name, "n/a", "n/a"
        return name, percent(value), f"{percent(interval.low)} to {percent(interval.high)}"

    return Table(
        header=("figure", "value", "95 % interval"),
        rows=[
            row("accuracy", result.accuracy, intervals.accuracy),
            row("EER", result.scores.eer, intervals.eer),
            *(
                row(f"TAR@FAR={far_text(point.far_target)}", point.tar, interval)
                for point, interval in zip(
                    result.scores.tar_at_far, intervals.tar_at_far, strict=True
                )
            ),
        ],
        caption=f"bootstrap: {intervals.num_replicates:,} draws of {intervals.num_units:,} "
        f"{intervals.over}",
    )


def applied_table(applied: Sequence[AppliedThreshold], origin: str) -> Table:
    """What fixed thresholds accept of these pairs."""
    return Table(
        header=("made for FAR", "cosine >=", "squared L2 <=", "TAR", "FAR"),
        rows=[
            (
                far_text(a.far_target),
                *threshold_texts(a.cosine),
                percent(a.tar),
                far_text(a.far),
            )
            for a in applied
        ],
        caption=f"thresholds of {origin}, applied to these pairs as they are",
    )


def _intervals(pairs: PairSet, result: VerificationResult, num_replicates: int) -> Bootstrap:
    if pairs.identities is None:
        return bootstrap(result, num_replicates=num_replicates)
    left, right = pairs.identities[pairs.left], pairs.identities[pairs.right]
    return bootstrap(result, left, right, num_replicates=num_replicates)


def _sections(
    name: str,
    pairs: PairSet,
    result: VerificationResult,
    tables: Sequence[Table],
    facts: dict[str, str],
) -> list[Section]:
    scores = result.scores
    worst = worst_pairs(result.cosines, pairs.left, pairs.right, pairs.is_same)
    readable = pairs.encoded is not None or pairs.root is not None
    return [
        Section("Result", [tables[0], tar_table({name: scores}), *tables[1:]]),
        Section(
            "Curves",
            [
                *curve_figures({name: scores.roc}),
                Figure(
                    curves.score_histogram(
                        scores.genuine, scores.impostor, result.threshold_cosine
                    ),
                    "Scores of all pairs, and the threshold with the highest accuracy",
                ),
            ],
        ),
        *worst_sections(worst, pairs.names, pairs.read if readable else None),
        Section("What was used", [Facts(facts)]),
    ]
