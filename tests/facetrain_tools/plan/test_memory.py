"""`facetrain plan memory`: what it prints is what a step takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facetrain_tools.cli import main


@pytest.mark.slow
def test_a_plan_is_printed_drawn_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--memory", "15MiB", "--global-batch-size", "8", "--num-processes", "2", "--run"]
    assert main(["plan", "memory", "quickstart", *flags, "--out", str(tmp_path / "p")]) == 0
    said = capsys.readouterr().out
    assert "mobilefacenet_tiny, 4 images a pass and process, fp32, cpu" in said
    results = json.loads((tmp_path / "p" / "results.json").read_text(encoding="utf-8"))
    points = results["points"]
    assert [point["budget_bytes"] for point in points] == sorted(
        (point["budget_bytes"] for point in points), reverse=True
    )
    assert points[0]["overhead"] == 0
    assert points[0]["peak_bytes"] == results["plain_peak_bytes"]
    assert points[-1]["budget_bytes"] == results["least_bytes"]
    for point in points:
        assert point["peak_bytes"] <= point["budget_bytes"]
    chosen = results["chosen"]
    assert 0 < chosen["overhead"] < points[-1]["overhead"]
    assert chosen["peak_bytes"] <= chosen["budget_bytes"] == 15 * 2**20
    share = float(results["facts"]["measured"].split("(")[1].split("%")[0])
    assert 98 <= share <= 100
    planned, plain = results["largest_batch"]
    assert plain < 4 < planned
    page = (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a recipe first: faces, lfw, quickstart, or a file"),
        (["fast"], "recipe 'fast': not one of faces, lfw, quickstart, nor a Python file"),
        (["quickstart", "--memory", "much"], "--memory much"),
        (
            ["quickstart", "--memory", "1MiB", "--global-batch-size", "8"],
            "--memory 1MiB: memory budget 1.0MiB is too small: the least found for this step is",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "memory", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
