"""The tables of an evaluation: named systems side by side."""

from __future__ import annotations

from collections.abc import Mapping

from facetrain.evaluation.metrics import OperatingPoint, RateReport
from facetrain.report.page import Table


def percent(share: float, digits: int = 2) -> str:
    """0.98184 -> "98.18 %"."""
    return f"{100.0 * share:.{digits}f} %"


def far_text(far: float) -> str:
    """0.001 -> "1e-3"; three digits at most."""
    if far == 0.0:
        return "0"
    mantissa, exponent = f"{far:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def threshold_texts(cosine: float) -> tuple[str, str]:
    """A threshold as cosine and as squared L2 distance, with digits enough to tell it from 1.

    0.2937 -> ("0.2937", "1.4126"); 0.9999984 -> ("0.99999840", "3.2e-06").
    """
    distance = max(0.0, 2.0 - 2.0 * cosine)
    if distance >= 1e-3:
        return f"{cosine:.4f}", f"{distance:.4f}"
    return f"{cosine:.8f}", f"{distance:.2g}"


def tar_table(systems: Mapping[str, RateReport]) -> Table:
    """TAR at each target FAR, EER and AUC; one row per system, all with the same targets."""
    reports = list(systems.values())
    targets = [point.far_target for point in reports[0].tar_at_far] if reports else []
    return Table(
        header=("system", *(f"TAR@FAR={far_text(target)}" for target in targets), "EER", "AUC"),
        rows=[
            (
                name,
                *(_tar(point) for point in report.tar_at_far),
                percent(report.eer),
                f"{report.auc:.4f}",
            )
            for name, report in systems.items()
        ],
        caption=_notes(reports[0]) if reports else "",
    )


def threshold_table(report: RateReport) -> Table:
    """The thresholds behind each TAR, as cosine (accept at or above) and as squared L2 distance."""
    rows = []
    for point in report.tar_at_far:
        if point.tar is None or point.far is None or point.threshold is None:
            rows.append((far_text(point.far_target), *("n/a",) * 4))
            continue
        rows.append(
            (
                far_text(point.far_target),
                percent(point.tar),
                far_text(point.far),
                *threshold_texts(point.threshold),
            )
        )
    return Table(
        header=("target FAR", "TAR", "FAR", "cosine >=", "squared L2 <="),
        rows=rows,
        caption=_notes(report),
    )


def _tar(point: OperatingPoint) -> str:
    return "n/a" if point.tar is None else percent(point.tar)


def _notes(report: RateReport) -> str:
    notes = []
    if report.far_rule != "honest":
        notes.append(f"FAR rule: {report.far_rule}, its FAR may be above the target")
    if any(point.tar is None for point in report.tar_at_far):
        notes.append(f"n/a: cannot be measured with {report.roc.num_impostor:,} impostor pairs")
    return "; ".join(notes)
