"""Ways to train in less memory, in one table: peaks, step time, and whether the result is the same.

    python benchmarks/memopt_table.py --network iresnet50 --batch 16 --segments 3 8

Every row works on the same parameters, with buffers of its own. Steps are interleaved, one of each
row, then again; times are CPU seconds on one thread, their ratio to the plain step of the same
round, medians. Convolutional networks are in channels_last memory. Bytes are those above the model
and its input, gradients included, of a step that starts without gradients (memopt_measure.py says
how they are counted); resident ones of a process for each row, in which freed memory goes back at
once, as it does not where time is taken. "First steps" are those until a row has settled,
its setting up and compilation included, in wall time.

Equal means: bit for bit what plain training gives, "all" of gradients and buffers (a recomputed
BatchNorm may update its statistics twice).

This file cannot be called memopt.py: beside the other scripts of this folder it would hide the
package from all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from memopt_measure import (
    Bits,
    Step,
    peak_bytes,
    resident_peak_bytes,
    twin,
)
from memopt_networks import NETWORKS
from memopt_peers import PEERS, Row, RowOptions
from torch import Tensor, nn

from memopt.errors import MemoptError

MIB = 2**20


@dataclass
class Result:
    """A line of the table.

    Attributes:
        note: why the row could not run; empty if it did.
        counted_bytes: peak of what operators make; None where a dispatch mode sees too little.
        allocated_bytes: peak of what the allocator gave out.
        resident_bytes: peak of a settled step above what was resident before it.
        first_resident_bytes: the same of setting up and the first steps.
        first_seconds: wall time of these.
        seconds: CPU time of a step, median.
        ratio: of it to the plain step's, median over rounds.
        equal: what has the bits of plain training: all, gradients, nothing.
    """

    label: str
    note: str = ""
    counted_bytes: int | None = None
    allocated_bytes: int | None = None
    resident_bytes: int | None = None
    first_resident_bytes: int | None = None
    first_seconds: float | None = None
    seconds: float | None = None
    ratio: float | None = None
    equal: str = ""


def say(text: str) -> None:
    """Progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


def set_up(row: Row, model: nn.Module, batch: Tensor, plain_bytes: int) -> Step:
    """The row's step, with one more of its first steps to come."""
    step = Step(row.build(model, plain_bytes), model, batch)
    for _ in range(row.num_first_steps - 1):
        step()
    return step


def measure(rows: dict[str, Row], options: argparse.Namespace) -> list[Result]:
    """Everything but resident memory."""
    network = NETWORKS[options.network]
    torch.manual_seed(0)
    model, batch = network.build(), network.make_batch(options.batch)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    steps: dict[str, Step] = {}
    results: list[Result] = []
    plain_bytes, plain_bits = 0, None
    for label, row in rows.items():
        result = Result(label)
        results.append(result)
        start = time.perf_counter()
        try:
            step = set_up(row, twin(model), batch, plain_bytes)
            bits = Bits.after(step, buffers)
        except MemoptError as error:
            result.note = str(error)
            say(f"{label}: {error}")
            continue
        result.first_seconds = time.perf_counter() - start
        steps[label] = step
        plain_bits = plain_bits or bits
        result.equal = bits.compare(plain_bits)
        counted, result.allocated_bytes = peak_bytes(step, countable=row.countable)
        result.counted_bytes = counted
        plain_bytes = plain_bytes or counted or 0
        say(
            f"{label}: first steps {result.first_seconds:.1f} s, "
            f"{result.allocated_bytes / MIB:.1f} MiB, equal: {result.equal}"
        )
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for number in range(options.steps):
        for label, step in steps.items():
            start = time.process_time()
            step()
            seconds[label].append(time.process_time() - start)
        say(f"round {number + 1} of {options.steps}")
    plain = next(iter(seconds.values()))
    for result in results:
        if own := seconds.get(result.label):
            result.seconds = statistics.median(own)
            result.ratio = statistics.median(a / b for a, b in zip(own, plain, strict=True))
    return results


def measure_resident(row: Row, options: argparse.Namespace) -> dict[str, int]:
    """In a process of its own: peaks of the first steps and of a settled one."""
    import torch._dynamo  # code that tracing and checkpointing load: none of the step's memory

    network = NETWORKS[options.network]
    torch.manual_seed(0)
    model, batch = network.build(), network.make_batch(options.batch)
    found: list[Step] = []

    def first_steps() -> None:
        found.append(set_up(row, model, batch, options.plain_bytes))
        found[0]()

    first = resident_peak_bytes(first_steps)
    model.zero_grad(set_to_none=True)
    gc.collect()
    return {"first_resident_bytes": first, "resident_bytes": resident_peak_bytes(found[0])}


def add_resident(result: Result, plain_bytes: int, arguments: Sequence[str]) -> None:
    """Measures resident memory of a row in a new process."""
    command = [sys.executable, __file__, *arguments]
    command += ["--resident-of", result.label, "--plain-bytes", str(plain_bytes)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for name, value in json.loads(run.stdout.splitlines()[-1]).items():
        setattr(result, name, value)
    say(f"{result.label}: {(result.resident_bytes or 0) / MIB:.1f} MiB resident")


def table(results: Sequence[Result]) -> str:
    """In Markdown; shares are of the first row."""
    names = [
        "",
        "counted, MiB",
        "allocated, MiB",
        "resident, MiB",
        "first steps, MiB",
        "first steps, s",
        "step, CPU s",
        "over plain",
        "equal",
    ]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    plain = results[0]
    for result in results:
        if result.note:
            lines.append(f"| {result.label} | {result.note}" + " |" * (len(names) - 1))
            continue
        assert result.seconds is not None
        assert result.ratio is not None
        cells = [
            result.label,
            _bytes(result.counted_bytes, plain.counted_bytes),
            _bytes(result.allocated_bytes, plain.allocated_bytes),
            _bytes(result.resident_bytes, plain.resident_bytes),
            _bytes(result.first_resident_bytes, None),
            f"{result.first_seconds:.1f}",
            f"{result.seconds:.2f}",
            f"{result.ratio - 1:+.1%}",
            result.equal,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bytes(count: int | None, whole: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / MIB:,.0f}" + (f" ({count / whole:.0%})" if whole else "")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=NETWORKS, default="iresnet50")
    parser.add_argument("--batch", type=int, default=0, help="default: the network's")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=[name for name in PEERS if name != "compile"],
        default=[name for name in PEERS if name != "compile"],
    )
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.6, 0.5, 0.4, 0.3, 0.2])
    parser.add_argument("--segments", type=int, nargs="*", default=[2, 8])
    parser.add_argument(
        "--compile",
        type=float,
        nargs="*",
        metavar="BUDGET",
        help="with rows of torch.compile, minutes each; default: 1.0 0.5 0.3 0.2 0.1",
    )
    parser.add_argument("--steps", type=int, default=5, help="rounds")
    parser.add_argument("--no-resident", action="store_true", help="no process for each row")
    parser.add_argument("--json", type=Path, help="file to save the rows in")
    parser.add_argument("--resident-of", help=argparse.SUPPRESS)
    parser.add_argument("--plain-bytes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.batch = options.batch or NETWORKS[options.network].batch
    return options


def make_rows(options: argparse.Namespace) -> dict[str, Row]:
    """By label, plain training first."""
    wish = RowOptions(
        budgets=tuple(options.budgets),
        segments=tuple(options.segments),
        compile_budgets=tuple(options.compile or (1.0, 0.5, 0.3, 0.2, 0.1)),
    )
    peers = ["plain", *(peer for peer in options.peers if peer != "plain")]
    peers += ["compile"] if options.compile is not None else []
    return {label: row for peer in peers for label, row in PEERS[peer](wish).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    torch.set_num_threads(1)
    rows = make_rows(options)
    if options.resident_of:
        print(json.dumps(measure_resident(rows[options.resident_of], options)))
        return 0
    title = (
        f"{options.network}, batch {options.batch}, fp32, one thread, torch {torch.__version__}, "
        f"{options.steps} rounds"
    )
    say(title)
    results = measure(rows, options)
    if not options.no_resident:
        say(table(results))
        for result in results:
            if not result.note:
                add_resident(result, results[0].counted_bytes or 0, arguments)
    print(f"{title}\n\n{table(results)}", flush=True)
    if options.json:
        saved: dict[str, Any] = {"title": title, "rows": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(saved, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
