"""plan.json: what `facetrain plan` decided, for `facetrain train --plan` to run.

    {"format": "facetrain-plan", "version": 1,
     "problem":   {backbone, identities, images_per_device, devices, memory_bytes, ...},
     "settings":  {zero_stage, zero_keeps, head_ranks, head_schedule, chunk_rows, tile_classes,
                   center_momentum, micro_batches},
     "predicted": {step_us, peak_bytes, parts, intra_bytes, inter_bytes, ...},
     "layers":    [{name, strategy, keeps}, ...]}

What is dropped of the backbone is not in it: training plans that anew, operator by operator, for
the bytes that this leaves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from facetrain.config import RunConfig
from facetrain.errors import FacetrainError
from facetrain.memory import format_bytes
from facetrain.planning.problem import Problem
from facetrain.planning.step import StepPlan
from facetrain.report import write_atomically

FORMAT, VERSION = "facetrain-plan", 1
PLAN_FILE = "plan.json"
_LARGEST_FILE_BYTES = 2**24
_MOST = 2**62
_Types = Mapping[str, type | tuple[type, ...]]
_PROBLEM_TYPES: _Types = {
    "backbone": str,
    "embedding_size": int,
    "identities": int,
    "images_per_device": int,
    "devices": int,
    "memory_bytes": int,
}
_SETTING_TYPES: _Types = {
    "zero_stage": int,
    "zero_keeps": list,
    "head_ranks": int,
    "head_schedule": str,
    "chunk_rows": int,
    "tile_classes": int,
    "center_momentum": str,
    "micro_batches": int,
}
_PREDICTED_TYPES: _Types = {"step_us": (int, float), "peak_bytes": int}


@dataclass(frozen=True)
class PlanFile:
    """A plan as training needs it.

    Attributes:
        problem: what it was made for, see above.
        settings: fields of the run's config.
        step_us: predicted time of a step.
        peak_bytes: predicted peak of all tensors of a device.
    """

    problem: dict[str, Any]
    settings: dict[str, Any]
    step_us: float
    peak_bytes: int

    def applied(self, config: RunConfig) -> RunConfig:
        """The config with the plan's decisions."""
        settings = self.settings
        head = replace(
            config.head,
            **{
                name: settings[name]
                for name in (
                    "head_ranks",
                    "head_schedule",
                    "chunk_rows",
                    "tile_classes",
                    "center_momentum",
                )
            },
        )
        optim = replace(
            config.optim,
            micro_batches=settings["micro_batches"],
            zero_stage=settings["zero_stage"],
            zero_keeps=tuple(settings["zero_keeps"]),
        )
        return replace(config, head=head, optim=optim)

    def describe(self) -> str:
        """One line for a log."""
        settings = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items() if value
        )
        return (
            f"{settings}; {format_bytes(self.peak_bytes)} of "
            f"{format_bytes(self.problem['memory_bytes'])} and {self.step_us / 1e3:,.0f} ms a step "
            "predicted"
        )

    def mismatches(self, config: RunConfig, num_classes: int, world_size: int) -> list[str]:
        """Where a run is another than what was planned; one line each."""
        rows = -(-config.optim.global_batch_size // world_size)
        found = {
            "backbone": config.model.backbone,
            "embedding_size": config.model.embedding_size,
            "identities": num_classes,
            "images_per_device": rows,
            "devices": world_size,
        }
        return [
            f"{name.replace('_', ' ')}: {self.problem[name]} planned, {value} here"
            for name, value in found.items()
            if self.problem[name] != value
        ]


def plan_content(plan: StepPlan) -> dict[str, Any]:
    """A plan as plain values."""
    problem, cost = plan.problem, plan.found.outcome
    layers = plan.found.choice[:-1]
    names, number = [], 0
    for option in layers:
        names.append(plan.chain.stages[number].name)
        number += option.span
    collectives = Counter(
        item.algorithm for option in plan.found.choice for item in option.traffic if item.us
    )
    return {
        "format": FORMAT,
        "version": VERSION,
        "problem": problem_facts(problem),
        "settings": settings_of(plan),
        "predicted": {
            "step_us": cost.time_us,
            "peak_bytes": cost.peak_bytes,
            "parts": {
                "weights_and_state_bytes": cost.weight_bytes,
                "gradient_bytes": cost.gradient_bytes,
                "kept_bytes": cost.activation_bytes,
                "work_bytes": cost.work_bytes,
                "constant_bytes": plan.chain.constant_bytes,
            },
            "intra_bytes": cost.intra_bytes,
            "inter_bytes": cost.inter_bytes,
            "collectives_by_algorithm": dict(collectives),
        },
        "layers": [
            {"name": name, "strategy": option.strategy, "keeps": option.detail}
            for name, option in zip(names, layers, strict=True)
        ],
    }


def problem_facts(problem: Problem) -> dict[str, Any]:
    """What a plan was made for."""
    return {
        "backbone": problem.config.model.backbone,
        "embedding_size": problem.config.model.embedding_size,
        "identities": problem.num_classes,
        "images_per_device": problem.rows,
        "devices": problem.num_ranks,
        "device": problem.cluster.device.name,
        "devices_per_node": problem.cluster.devices_per_node,
        "memory_bytes": problem.memory_bytes,
        "precision": "fp32" if problem.precision is None else "bf16",
    }


def settings_of(plan: StepPlan) -> dict[str, Any]:
    """The fields of a run's config that a plan decides."""
    layers, loss = plan.found.choice[:-1], plan.found.choice[-1]
    strategies = {option.strategy for option in layers}
    stage = max({"replicated": 0, "zero1": 1, "zero2": 2, "zero3": 3}[name] for name in strategies)
    keeps: list[str] = []
    if stage == 3:
        number = 0
        for option in layers:
            if option.strategy == "zero2":
                keeps.append(plan.chain.stages[number].name)
            number += option.span
    return {
        "zero_stage": stage,
        "zero_keeps": keeps,
        "micro_batches": plan.micro_batches,
        **loss.settings,
    }


def write_plan(path: Path, plan: StepPlan) -> None:
    """Write plan.json, whole or not at all."""
    write_atomically(path, json.dumps(plan_content(plan), indent=1) + "\n")


def read_plan(path: Path) -> PlanFile:
    """The plan in a file.

    Raises:
        FacetrainError: no plan, one of another version, or fields that are missing or wrong; all
            of them are named.
    """
    try:
        # A pipe would wait, and a device has no end.
        if path.exists() and not path.is_dir() and not path.is_file():
            raise FacetrainError(f"--plan {path}: no regular file; give a plan.json")
        if path.is_file() and path.stat().st_size > _LARGEST_FILE_BYTES:
            raise FacetrainError(
                f"--plan {path}: more than 16 MiB, so not a plan; give a plan.json"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except FacetrainError:
        raise
    except OSError as error:
        raise FacetrainError(
            f"--plan {path}: {error.strerror or error}; give a plan.json of facetrain plan, or auto"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FacetrainError(
            f"--plan {path}: no JSON ({error}); make it anew with facetrain plan"
        ) from None
    return plan_from(content, f"--plan {path}")


def plan_from(content: Any, where: str) -> PlanFile:
    """A plan from its plain values; errors as `read_plan`."""
    again = "make it anew with facetrain plan"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FacetrainError(f"{where}: not a plan; {again}")
    if content.get("version") != VERSION or content["version"] is True:
        raise FacetrainError(
            f"{where}: a plan of version {content.get('version')}, expected {VERSION}; {again}"
        )
    wrong: list[str] = []
    for part, types in (
        ("problem", _PROBLEM_TYPES),
        ("settings", _SETTING_TYPES),
        ("predicted", _PREDICTED_TYPES),
    ):
        values = content.get(part)
        if not isinstance(values, dict):
            wrong.append(part)
            continue
        wrong += [
            f"{part}.{name}"
            for name, kind in types.items()
            if not isinstance(values.get(name), kind) or not _is_sound(values[name])
        ]
        if part == "problem":
            # A plan for nobody, or for no memory, is none.
            wrong += [f"{part}.{name}" for name in types if values.get(name) == 0]
        if part == "settings":
            # What training would not do must not look as if it did.
            wrong += [f"{part}.{name}" for name in values if name not in types]
    if wrong:
        raise FacetrainError(
            f"{where}: {', '.join(wrong)} missing, unknown or of a wrong type or range; {again}"
        )
    predicted = content["predicted"]
    return PlanFile(
        content["problem"],
        content["settings"],
        float(predicted["step_us"]),
        predicted["peak_bytes"],
    )


def _is_sound(value: Any) -> bool:
    """Whether a value can be one of a plan: text, names, or a number of at least 0."""
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return 0 <= value < _MOST  # not of nan
    return True
