"""What a training run ends with: report.html, results.json and a short table on the terminal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from facetrain.evaluation.task import SystemResult
from facetrain.memory import MemoryReport
from facetrain.planning.result import PlanResult
from facetrain.report import curves, plots
from facetrain.report.page import Facts, Figure, Section, Table, write_atomically, write_page
from facetrain.report.tables import percent, tar_table, threshold_table
from facetrain.run_folder import RESULTS_FILE
from facetrain.trainer import TrainingOutcome

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class TrainingReport:
    """Everything that is known at the end of a run.

    Attributes:
        command: that started it.
        headline: name of the evaluation task's own figure.
        systems: the trained network first, then what it is compared with.
        memory: one report per rank.
        plan: what came of it; None without one.
        metrics: records of metrics.jsonl.
        config: the resolved one.
        seconds: of this process, from start to report.
    """

    title: str
    command: str
    headline: str
    systems: Sequence[SystemResult]
    outcome: TrainingOutcome
    memory: Sequence[MemoryReport]
    metrics: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    num_images: int
    num_classes: int
    precision: str
    seconds: float
    plan: PlanResult | None = None

    @property
    def tightest(self) -> MemoryReport:
        """The rank with the highest measured peak."""
        return max(self.memory, key=lambda report: report.measured_peak_bytes or 0)

    @property
    def images_per_s(self) -> float:
        """Median over the run, whichever processes did its parts."""
        speeds = [record["images_per_s"] for record in self.metrics]
        return statistics.median(speeds) if speeds else 0.0

    @property
    def final_loss(self) -> float | None:
        losses = [record["loss"] for record in self.metrics if "loss" in record]
        return losses[-1] if losses else None


def result_table(report: TrainingReport) -> Table:
    """The systems side by side: the task's figure, then TAR at FAR."""
    rates = tar_table({system.name: system.result.scores for system in report.systems})
    return Table(
        header=(rates.header[0], report.headline, *rates.header[1:]),
        rows=[
            (row[0], percent(system.headline), *row[1:])
            for row, system in zip(rates.rows, report.systems, strict=True)
        ],
        caption=rates.caption,
    )


def run_facts(report: TrainingReport) -> Facts:
    """The run in a few lines."""
    outcome, memory = report.outcome, report.tightest
    skipped = outcome.totals
    loss = "" if report.final_loss is None else f", final loss {report.final_loss:.3f}"
    search = report.systems[0].result.to_dict().get("search")
    return Facts(
        {
            "trained on": f"{report.num_images:,} images of {report.num_classes:,} identities",
            "steps": f"{outcome.step:,} on {len(report.memory)} processes, "
            f"{report.precision}{loss}",
            "speed": f"{report.images_per_s:,.0f} img/s, {outcome.input_share:.0%} of the time "
            "waiting for images",
            "memory": memory.describe().removeprefix("backbone memory: "),
            **({"plan": report.plan.describe()} if report.plan else {}),
            "skipped": f"{skipped.skipped_images} images, {skipped.skipped_steps} steps",
            **({"search": search} if search else {}),
            "time": f"{report.seconds:,.0f} s after start-up",
        }
    )


def write_training_report(folder: Path, report: TrainingReport) -> None:
    """Write report.html and results.json into the run folder."""
    trained = report.systems[0].result.scores
    steps = [record["step"] for record in report.metrics if "loss" in record]
    losses = [record["loss"] for record in report.metrics if "loss" in record]
    memory = report.tightest
    peaks = {
        "plain (predicted)": memory.plain_peak_bytes,
        "planned": memory.predicted_peak_bytes,
        "measured": memory.measured_peak_bytes,
    }
    threshold = next((p.threshold for p in trained.tar_at_far if p.far_target == 1e-2), None)
    write_page(
        folder / REPORT_FILE,
        report.title,
        [
            Section("Result", [result_table(report), run_facts(report)]),
            Section(
                "Thresholds of the trained network",
                [threshold_table(trained)],
            ),
            Section(
                "Evaluation",
                [
                    Figure(
                        curves.roc_curves({s.name: s.result.scores.roc for s in report.systems}),
                        "ROC: share of genuine pairs accepted (TAR) over share of impostor pairs "
                        "accepted (FAR)",
                    ),
                    *(
                        Figure(
                            curves.score_histogram(
                                system.result.scores.genuine,
                                system.result.scores.impostor,
                                threshold if system is report.systems[0] else None,
                            ),
                            f"Scores of the {system.name}"
                            + (", threshold at FAR 1e-2" if system is report.systems[0] else ""),
                        )
                        for system in report.systems[:2]
                    ),
                ],
            ),
            Section(
                "Training",
                [
                    Figure(plots.loss_curve(steps, losses), "Training loss"),
                    Figure(
                        plots.throughput(
                            [record["step"] for record in report.metrics],
                            [record["images_per_s"] for record in report.metrics],
                        ),
                        "Images per second, all processes together",
                    ),
                    Figure(
                        plots.memory_bars(
                            {name: peak for name, peak in peaks.items() if peak is not None},
                            memory.budget_bytes,
                        ),
                        "Peak bytes of the backbone's step above weights and optimizer state, "
                        "per process",
                    ),
                ],
            ),
            Section("Configuration", [Facts(_flat(report.config))]),
        ],
        summary=report.command,
    )
    results = {
        "title": report.title,
        "command": report.command,
        "systems": {
            system.name: {
                "description": system.description,
                report.headline: system.headline,
                **system.result.to_dict(),
            }
            for system in report.systems
        },
        "step": report.outcome.step,
        "images_per_s": report.images_per_s,
        "input_share": report.outcome.input_share,
        "final_loss": report.final_loss,
        "skipped": asdict(report.outcome.totals),
        "memory": [asdict(rank) for rank in report.memory],
        "plan": None if report.plan is None else asdict(report.plan),
        "num_images": report.num_images,
        "num_classes": report.num_classes,
        "precision": report.precision,
        "seconds": report.seconds,
        "config": report.config,
    }
    write_atomically(folder / RESULTS_FILE, json.dumps(results, indent=1) + "\n")


def summary(report: TrainingReport, folder: Path) -> str:
    """What the terminal shows at the end."""
    return "\n\n".join(
        [
            report.title,
            result_table(report).to_text(),
            run_facts(report).to_text(),
            f"report  {(folder / REPORT_FILE).resolve()}",
        ]
    )


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings by flag name."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value))
        else:
            flat[name.replace("_", "-")] = "none" if value is None else str(value)
    return flat
