"""`facetrain plan memory RECIPE [--memory X]`: what a recipe's step takes under every budget.

Nothing is trained: the step is traced without running it, and the time of each distinct operator is
measured once. `--run` also runs a step, and measures. `--out` writes a page with pictures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from facetrain.command import command_line, parse_flags
from facetrain.config import FlatRunConfig, RunConfig
from facetrain.device import choose_precision, device_for
from facetrain.distributed import World
from facetrain.errors import FacetrainError
from facetrain.memory import MemoptError, MemoryReport, format_bytes, parse_bytes
from facetrain.memory_plan import BackbonePlan, plan_backbone, run_step
from facetrain.report import Facts, Figure, Section, Table, plots, write_atomically, write_page
from facetrain.run import build_initial_backbone
from facetrain_tools.plan.flags import flags_for
from facetrain_tools.train import recipe_names

REPORT_FILE = "report.html"
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class MemoryFlags:
    """Plan the memory of a recipe's step; with --out, report.html and results.json go there."""

    run: bool = False
    """Run a step under the plan, and measure its peak."""
    config: FlatRunConfig = field(default_factory=RunConfig)


def main(arguments: Sequence[str]) -> int:
    """Plans, prints, and writes the page if asked to; the exit code.

    Raises:
        FacetrainError: bad flags, a budget below the least.
    """
    if not arguments or arguments[0].startswith("-"):
        raise FacetrainError(
            f"facetrain plan memory: name a recipe first: {', '.join(recipe_names())}, or a file"
        )
    name, *rest = arguments
    flags = parse_flags(flags_for(name, MemoryFlags), rest, f"facetrain plan memory {name}")
    config = flags.config.check()
    device = device_for(config.device, World.from_environment())[0]
    precision = choose_precision(config.precision, device)
    num_rows = -(-config.optim.largest_micro_batch // config.num_processes)
    accumulates = config.optim.micro_batches > 1
    backbone = build_initial_backbone(config, device)
    budget_bytes = None if config.memory is None else parse_bytes(config.memory)
    try:
        plan = plan_backbone(
            backbone, num_rows, budget_bytes, autocast_dtype=precision, accumulates=accumulates
        )
    except MemoptError as error:
        raise FacetrainError(f"--memory {config.memory}: {error}") from error
    facts = plan_facts(plan, config, device, precision)
    if flags.run:
        budget_bytes = plan.plain_peak_bytes if budget_bytes is None else budget_bytes
        report = run_step(
            backbone, num_rows, budget_bytes, autocast_dtype=precision, accumulates=accumulates
        )
        facts = Facts({**facts.values, "measured": measured(report)})
    print(f"{facts.to_text()}\n\n{curve_table(plan).to_text()}")
    if config.out is not None:
        write_report(config.out, f"{Path(name).stem}: memory of a step", plan, facts)
        print(f"\nreport  {(config.out / REPORT_FILE).resolve()}")
    return 0


def plan_facts(
    plan: BackbonePlan, config: RunConfig, device: torch.device, precision: torch.dtype | None
) -> Facts:
    """The plan in a few lines."""
    values = {
        "step": f"{config.model.backbone}, {plan.num_rows} images a pass and process, "
        f"{'fp32' if precision is None else 'bf16'}, {device}, {plan.step_us / 1e3:,.0f} ms",
        "plain peak": format_bytes(plan.plain_peak_bytes),
        "least budget": format_bytes(plan.least_bytes, round_up=True),
    }
    if plan.chosen is not None:
        values["budget"] = (
            f"{format_bytes(plan.chosen.budget_bytes)}: planned "
            f"{format_bytes(plan.chosen.peak_bytes)}, {plan.chosen.num_dropped} tensors dropped, "
            f"+{plan.chosen.overhead:.1%} time"
        )
    if plan.placed_bytes is not None:
        values["with addresses"] = f"{format_bytes(plan.placed_bytes)} in one range"
    if plan.largest_batch is not None:
        planned, plain = plan.largest_batch
        values["largest batch"] = f"{planned:,} images in this budget, {plain:,} without a plan"
    return Facts(values)


def measured(report: MemoryReport) -> str:
    """What a step took."""
    assert report.measured_peak_bytes is not None
    assert report.predicted_peak_bytes is not None
    time = "" if report.measured_overhead is None else f", +{report.measured_overhead:.1%} time"
    return (
        f"{format_bytes(report.measured_peak_bytes)} "
        f"({report.measured_peak_bytes / report.predicted_peak_bytes:.2%} of planned){time}"
    )


def curve_table(plan: BackbonePlan) -> Table:
    """Budgets from the plain peak down to the least, and what each costs."""
    return Table(
        ["budget", "of plain", "planned peak", "time", "tensors dropped"],
        [
            [
                format_bytes(point.budget_bytes, round_up=True),
                f"{point.budget_bytes / plan.plain_peak_bytes:.0%}",
                format_bytes(point.peak_bytes),
                f"+{point.overhead:.1%}",
                str(point.num_dropped),
            ]
            for point in plan.points
        ],
        caption="Peak above weights and optimizer state, gradients included; the last row is the "
        "least budget found.",
    )


def write_report(folder: Path, title: str, plan: BackbonePlan, facts: Facts) -> None:
    """Write report.html and results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    budget_bytes = None if plan.chosen is None else plan.chosen.budget_bytes
    over_step = {"without a budget": plan.plain_memory_bytes}
    if plan.memory_bytes is not None:
        over_step["planned"] = plan.memory_bytes
    blocks: list[Facts | Table | Figure] = [
        facts,
        Figure(
            plots.memory_over_step(over_step, plan.backward_from, budget_bytes),
            "Bytes alive while each operator of the step runs",
        ),
        Figure(
            plots.budget_curve(
                [point.budget_bytes for point in plan.points],
                [point.overhead for point in plan.points],
                budget_bytes,
            ),
            "Time that recomputation adds, by budget",
        ),
    ]
    sections = [Section("Plan", blocks), Section("Budgets", [curve_table(plan)])]
    if plan.dropped:
        sections.append(
            Section(
                "Dropped and recomputed, most bytes first",
                [
                    Table(
                        ["made by", "number", "bytes", "time each"],
                        [
                            [
                                one.operator,
                                str(one.count),
                                format_bytes(one.num_bytes),
                                f"{one.recompute_us / 1e3:.2f} ms",
                            ]
                            for one in plan.dropped
                        ],
                    )
                ],
            )
        )
    write_page(folder / REPORT_FILE, title, sections, summary=command_line())
    results = {
        "facts": dict(facts.values),
        "plain_peak_bytes": plan.plain_peak_bytes,
        "least_bytes": plan.least_bytes,
        "largest_batch": plan.largest_batch,
        "chosen": None if plan.chosen is None else dataclasses.asdict(plan.chosen),
        "points": [dataclasses.asdict(point) for point in plan.points],
        "dropped": [dataclasses.asdict(one) for one in plan.dropped],
    }
    write_atomically(folder / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
