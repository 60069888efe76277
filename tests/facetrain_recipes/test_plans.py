"""`facetrain train --plan`: made here or from a file, by one process and by two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from facetrain_tools.cli import main
from tests.facetrain_recipes.conftest import MiniLfw

COMMAND = [sys.executable, "-m", "facetrain_tools.cli"]


def _run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )


def _results(mini: MiniLfw) -> dict[str, Any]:
    return json.loads((mini.root / "run" / "results.json").read_text())  # type: ignore[no-any-return]


def _losses(mini: MiniLfw) -> list[float]:
    lines = (mini.root / "run" / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines)]


def _plan_flags(out: Path, *more: str) -> list[str]:
    return [
        *("plan", "lfw", "--device", "rtx2080ti", "--ids", "4", "--backbone", "mobilefacenet_tiny"),
        *("--embedding-size", "16", "--global-batch-size", "6", "--out", str(out), *more),
    ]


def test_a_plan_for_another_run_is_refused_before_anything(
    mini_lfw: MiniLfw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"format": "facetrain-plan", "version": 1, "problem": 3}', encoding="utf-8")
    assert main(mini_lfw.flags("--plan", str(path))) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "problem, settings, predicted missing" in said


@pytest.mark.slow
def test_a_plan_made_here_holds_its_memory_and_changes_nothing(mini_lfw: MiniLfw) -> None:
    flags = mini_lfw.flags("--plan", "auto", "--memory", "11MiB", num_processes=2)
    planned = _run(flags, mini_lfw.root)
    assert planned.returncode == 0, planned.stderr
    assert "--plan auto: " in planned.stdout
    result = _results(mini_lfw)["plan"]
    assert result["planned_bytes"] == 11 * 2**20
    assert result["measured_peak_bytes"] <= result["planned_bytes"]
    share = result["measured_peak_bytes"] / result["predicted_peak_bytes"]
    assert share == pytest.approx(1.0, abs=0.05)
    # The same way through the head, nothing dropped: the same losses, to the bit.
    losses, planned_for = _losses(mini_lfw), _results(mini_lfw)["config"]
    assert json.loads((mini_lfw.root / "run" / "config.json").read_text()) == planned_for
    (mini_lfw.root / "run").rename(mini_lfw.root / "planned")
    more = [
        text
        for name in ("head_ranks", "head_schedule", "chunk_rows", "tile_classes")
        for text in (f"--{name.replace('_', '-')}", str(planned_for["head"][name]))
    ]
    plain = _run(mini_lfw.flags(*more, num_processes=2), mini_lfw.root)
    assert plain.returncode == 0, plain.stderr
    assert _results(mini_lfw)["memory"][0]["num_dropped"] == 0
    assert _losses(mini_lfw) == losses


@pytest.mark.slow
def test_a_plan_from_a_file_runs_where_it_is_for(mini_lfw: MiniLfw, tmp_path: Path) -> None:
    made = _run(_plan_flags(tmp_path / "p", "--gpus", "2"), mini_lfw.root)
    assert made.returncode == 0, made.stderr
    plan = tmp_path / "p" / "plan.json"
    run = _run(mini_lfw.flags("--plan", str(plan), num_processes=2), mini_lfw.root)
    assert run.returncode == 0, run.stderr
    assert _results(mini_lfw)["plan"]["measured_peak_bytes"] > 0
    other = _run(mini_lfw.flags("--plan", str(plan), "--resume"), mini_lfw.root)
    # Finished: there is nothing to plan for.
    assert other.returncode == 0
    (mini_lfw.root / "run").rename(mini_lfw.root / "two")
    alone = _run(mini_lfw.flags("--plan", str(plan)), mini_lfw.root)
    assert alone.returncode == 2
    assert alone.stderr.count("\n") == 1
    assert "images per device: 3 planned, 6 here; devices: 2 planned, 1 here" in alone.stderr


@pytest.mark.slow
def test_a_budget_below_the_least_is_one_line(mini_lfw: MiniLfw) -> None:
    flags = mini_lfw.flags("--plan", "auto", "--memory", "1MiB", num_processes=2)
    run = _run(flags, mini_lfw.root)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "--plan auto: memory 1.0MiB: the least for 4 identities and 3 images a" in run.stderr
