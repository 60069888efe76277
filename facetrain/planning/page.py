"""A plan in a terminal and on a page: strategies side by side, memory over the step."""

from __future__ import annotations

from pathlib import Path

from facetrain.command import command_line
from facetrain.memory import format_bytes
from facetrain.planning.plan_file import PLAN_FILE, settings_of, write_plan
from facetrain.planning.step import StepPlan
from facetrain.report import Facts, Figure, Section, Table, plots, write_page
from memopt.errors import BudgetTooSmallError
from memopt.partition.chain import Chain, memory_over_step
from memopt.partition.search import Found

REPORT_FILE = "report.html"
CHOSEN = "this plan"
_PARTS = ("weights, optimizer state", "gradients", "kept for backward", "worked with")


def plan_facts(plan: StepPlan) -> Facts:
    """The plan in a few lines."""
    problem, cost = plan.problem, plan.found.outcome
    cluster = problem.cluster
    devices = f"{problem.num_ranks} x {cluster.device.name}"
    if cluster.num_nodes > 1:
        devices += f" on {cluster.num_nodes} nodes"
    images = problem.rows * problem.num_ranks
    loss = plan.found.choice[-1]
    values = {
        "step": f"{problem.config.model.backbone}, {problem.num_classes:,} identities, "
        f"{problem.rows} images a device, {'fp32' if problem.precision is None else 'bf16'}",
        "devices": f"{devices}, {format_bytes(problem.memory_bytes)} each",
        "time": f"{cost.time_us / 1e3:,.1f} ms a step, {images / cost.time_us * 1e6:,.0f} images/s",
        "peak": f"{format_bytes(cost.peak_bytes)}, {_binds(plan.chain, plan.found)}",
        "backbone": f"{plan.family}; {_ways(plan.found)}",
        "head": loss.detail,
    }
    if plan.micro_batches > 1:
        values["micro-batches"] = str(plan.micro_batches)
    return Facts(values)


def strategy_table(plan: StepPlan) -> Table:
    """This plan beside what other strategies find on the same kernels and constants."""
    rows = [_row(CHOSEN, plan.chain, plan.found, plan)]
    for name, found in plan.rows.items():
        if isinstance(found, Found):
            rows.append(_row(name, plan.chain, found, plan))
        elif isinstance(found, BudgetTooSmallError):
            least = format_bytes(found.least_bytes, round_up=True)
            rows.append([name, "does not fit", "", f"{least} at least", *[""] * 7])
        else:
            rows.append([name, "not possible", *[""] * 9])
    return Table(
        [
            "strategy", "ms/step", "of this plan", "peak", "weights, state", "gradients", "kept",
            "worked with", "binds at", "MB a device in its node", "MB a node sends",
        ],
        rows,
        caption="Peak by part, at the moment it is reached. All rows use the same constants, and "
        "all but arcface_torch's, with its eager logits, the same kernels.",
    )  # fmt: skip


def write_plan_page(folder: Path, title: str, plan: StepPlan) -> None:
    """Write plan.json and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder / PLAN_FILE, plan)
    moments = memory_over_step(plan.chain, plan.found.choice)
    parts = {name: moments[:, column] for column, name in enumerate(_PARTS)}
    figure = Figure(
        plots.stacked_memory(
            parts,
            constant_bytes=plan.chain.constant_bytes,
            backward_from=len(plan.found.choice) - 1,
            limit_bytes=plan.problem.memory_bytes,
        ),
        "Bytes of a device while each layer works: forward, the loss, backward",
    )
    sections = [
        Section("Plan", [plan_facts(plan), figure]),
        Section("Strategies", [strategy_table(plan)]),
        Section("Layers", [_layer_table(plan)]),
    ]
    write_page(folder / REPORT_FILE, title, sections, summary=command_line())


def _row(name: str, chain: Chain, found: Found, plan: StepPlan) -> list[str]:
    cost = found.outcome
    return [
        name,
        f"{cost.time_us / 1e3:,.1f}",
        f"{cost.time_us / plan.found.outcome.time_us:.2f}x",
        format_bytes(cost.peak_bytes),
        format_bytes(cost.weight_bytes),
        format_bytes(cost.gradient_bytes),
        format_bytes(cost.activation_bytes),
        format_bytes(cost.work_bytes),
        chain.stages[cost.at].name,
        f"{cost.intra_bytes / 1e6:,.0f}",
        f"{cost.inter_bytes / 1e6:,.0f}",
    ]


def _binds(chain: Chain, found: Found) -> str:
    cost = found.outcome
    if cost.at == len(chain.stages) - 1:
        return "at the loss"
    return f"in the backward pass of {chain.stages[cost.at].name}"


def _ways(found: Found) -> str:
    """How many layers keep what."""
    counts: dict[str, int] = {}
    for option in found.choice[:-1]:
        counts[option.detail] = counts.get(option.detail, 0) + option.span
    most = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} layers {what}" for what, count in most[:4])


def _layer_table(plan: StepPlan) -> Table:
    rows, number = [], 0
    for option in plan.found.choice:
        rows.append(
            [
                plan.chain.stages[number].name,
                option.strategy,
                option.detail,
                f"{option.time_us / 1e3:,.2f}",
                format_bytes(option.kept_bytes),
                format_bytes(option.work_bytes),
            ]
        )
        number += option.span
    settings = " ".join(f"{name}={value}" for name, value in settings_of(plan).items())
    return Table(
        ["layer", "partition", "keeps", "ms", "kept for backward", "worked with"],
        rows,
        caption=f"Settings of the run: {settings}",
    )
