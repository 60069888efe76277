"""`facetrain plan RECIPE --gpus 256 --device v100-32g --ids 10_000_000`: partition and memory.

Nothing is trained and nothing of the devices' is needed: the backbone is traced without running it.
Prints the strategies side by side, and writes plan.json (for `facetrain train --plan`) and
report.html.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from facetrain.command import parse_flags
from facetrain.config import DEVICES, FlatRunConfig, RunConfig
from facetrain.device import device_for
from facetrain.distributed import World
from facetrain.distributed.cpus import usable_cpus
from facetrain.distributed.launch import most_processes
from facetrain.errors import ConfigError, FacetrainError
from facetrain.memory import MemoptError, parse_bytes
from facetrain.planning.fit import FITS, fit
from facetrain.planning.page import REPORT_FILE, plan_facts, strategy_table, write_plan_page
from facetrain.planning.plan_file import PLAN_FILE
from facetrain.planning.problem import MAY_CHANGE, Problem, measured_problem, named_problem
from facetrain.planning.step import plan_step
from facetrain.this_cluster import measure_cluster
from facetrain_tools.plan.flags import flags_for
from facetrain_tools.train import recipe_names

THIS = "this"
_MOST_DEVICES, _MOST_IDS, _MOST_ROWS = 4096, 10**9, 4096


@dataclass(frozen=True)
class StepFlags:
    """Plan a recipe's step: its partition over devices, and what it keeps or remakes.

    --device is a cluster here: v100-32g, a100-80g, h100-80g, h200, rtx2080ti, a YAML file of yours
    (facetrain bench cluster writes one), or this: this machine, measured. --memory is all that a
    device's tensors may take; default: what it has.
    """

    ids: int = 0
    """Identities C; not needed with --fit ids."""
    gpus: int = 1
    """Devices of the cluster; processes, on a CPU."""
    batch_per_gpu: int = 0
    """Images of a step on each device; 0 = as many as the recipe gives a process, or
    --global-batch-size over all devices where you give that."""
    fit: str | None = None
    """Find the most that fits: batch (images a device) or ids (identities)."""
    may_change: tuple[str, ...] = ()
    """What a plan may change of the result: micro-batches (BatchNorm sees fewer images at a time),
    momentum (of the class centers, in bf16)."""
    config: FlatRunConfig = field(default_factory=RunConfig)


def main(arguments: Sequence[str]) -> int:
    """Plans, prints and writes; the exit code.

    Raises:
        FacetrainError: bad flags, or nothing fits: names the least memory and what binds.
    """
    name, *rest = arguments
    if name.startswith("-"):
        raise FacetrainError(
            f"facetrain plan: name a recipe first: {', '.join(recipe_names())}, or a file"
        )
    # A recipe's budget is the backbone's alone, for the machine it was written on.
    flags_type = flags_for(name, StepFlags, memory=None)
    flags = parse_flags(flags_type, rest, f"facetrain plan {name}")
    if not flags.batch_per_gpu and not any(a.startswith("--global-batch-size") for a in rest):
        config = flags.config
        rows = -(-config.optim.global_batch_size // config.num_processes)
        flags = replace(flags, batch_per_gpu=max(2, rows))
    problem = problem_of(flags)
    started = time.perf_counter()
    try:
        if flags.fit is not None:
            problem = fit(flags.fit, problem)
            found = (
                f"{problem.rows} images a device"
                if flags.fit == "batch"
                else (f"{problem.num_classes:,} identities")
            )
            print(f"largest that fits: {found}\n")
        plan = plan_step(problem)
    except MemoptError as error:
        raise FacetrainError(str(error)) from error
    print(f"{plan_facts(plan).to_text()}\n\n{strategy_table(plan).to_text()}")
    stem = Path(name).stem
    folder = flags.config.out or Path("plans") / f"{stem}-{problem.num_ranks}"
    write_plan_page(folder, f"{stem}: plan of a step", plan)
    print(f"\nplanned in {time.perf_counter() - started:.1f} s")
    print(f"plan    {(folder / PLAN_FILE).resolve()}\nreport  {(folder / REPORT_FILE).resolve()}")
    print(f"run it with: facetrain train {name} --plan {folder / PLAN_FILE} [your flags]")
    return 0


def problem_of(flags: StepFlags) -> Problem:
    """What the flags ask to plan.

    Raises:
        ConfigError: flags out of range, all of them.
        FacetrainError: an unknown cluster, or a machine that cannot be measured.
    """
    wrong = [
        f"--{name} {value}: must be from {least} to {most}"
        for name, value, least, most in (
            ("gpus", flags.gpus, 1, _MOST_DEVICES),
            ("batch-per-gpu", flags.batch_per_gpu, 0, _MOST_ROWS),
            ("ids", flags.ids, int(flags.fit != "ids"), _MOST_IDS),
        )
        if not least <= value <= most
    ]
    wrong += [
        f"--may-change {name}: must be of {', '.join(MAY_CHANGE)}"
        for name in flags.may_change
        if name not in MAY_CHANGE
    ]
    if flags.fit is not None and flags.fit not in FITS:
        wrong.append(f"--fit {flags.fit}: must be one of {', '.join(FITS)}")
    if flags.batch_per_gpu == 1:
        wrong.append("--batch-per-gpu 1: BatchNorm needs 2")
    is_here = flags.config.device in (THIS, *DEVICES)
    known = flags.config.device in DEVICES
    config = flags.config if known else replace(flags.config, device="auto")
    # What the plan decides is refused as training with a plan refuses it.
    if wrong := wrong + replace(config, plan=THIS).problems():
        raise ConfigError(wrong)
    memory_bytes = None if config.memory is None else parse_bytes(config.memory)
    if not is_here:
        return named_problem(
            config,
            flags.config.device,
            flags.gpus,
            max(1, flags.ids),
            rows=flags.batch_per_gpu,
            memory_bytes=memory_bytes,
            may_change=flags.may_change,
        )
    device, _ = device_for(config.device, World.from_environment())
    if device.type == "cpu":
        if flags.gpus > (most := most_processes()):
            raise FacetrainError(
                f"--gpus {flags.gpus}: this machine can be measured with 1 to {most} processes; "
                "give a larger cluster as --device, by name or as a file"
            )
        torch.set_num_threads(max(1, usable_cpus() // flags.gpus))
    print(f"measuring this machine with {flags.gpus} processes", file=sys.stderr)
    cluster = measure_cluster(flags.gpus, device.type)
    return measured_problem(
        config,
        cluster,
        device,
        max(1, flags.ids),
        rows=flags.batch_per_gpu,
        memory_bytes=memory_bytes,
        may_change=flags.may_change,
    )
