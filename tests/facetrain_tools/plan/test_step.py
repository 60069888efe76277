"""`facetrain plan RECIPE`: the table, the files, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facetrain_tools.cli import main

FLAGS = ["--gpus", "8", "--device", "rtx2080ti", "--ids", "10_000", "--batch-per-gpu", "4"]


def test_a_plan_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "quickstart", *FLAGS, "--out", str(tmp_path / "p")]) == 0
    said = capsys.readouterr().out
    assert "10,000 identities, 4 images a device" in said
    assert "8 x rtx2080ti" in said
    for strategy in ("this plan", "empirical best", "FlexFlow-like", "ZeRO-3", "data parallel"):
        assert f"\n{strategy}" in said
    content = json.loads((tmp_path / "p" / "plan.json").read_text(encoding="utf-8"))
    assert content["problem"]["devices"] == 8
    assert content["predicted"]["peak_bytes"] <= content["problem"]["memory_bytes"]
    assert (tmp_path / "p" / "report.html").is_file()


@pytest.mark.slow
def test_the_recipes_own_batch_and_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """quickstart gives each of its two processes 32 images."""
    flags = ["--gpus", "2", "--device", "this", "--ids", "200", "--out", str(tmp_path / "p")]
    assert main(["plan", "quickstart", *flags]) == 0
    assert "200 identities, 32 images a device" in capsys.readouterr().out
    content = json.loads((tmp_path / "p" / "plan.json").read_text(encoding="utf-8"))
    assert content["problem"]["device"] == "this"
    assert content["problem"]["images_per_device"] == 32


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "v100"], "--device v100: cluster 'v100': must be one of v100-32g, a100-80g"),
        (["--gpus", "0"], "--gpus 0: must be from 1 to 4096"),
        (["--ids", "0"], "--ids 0: must be from 1 to 1000000000"),
        (["--batch-per-gpu", "1"], "--batch-per-gpu 1: BatchNorm needs 2"),
        (["--micro-batches", "4"], "4 images a device in --micro-batches 4: BatchNorm needs 2 at"),
        (["--zero-stage", "3"], "--zero-stage 3: a plan chooses it"),
        (["--head-ranks", "2"], "--head-ranks 2: a plan chooses it"),
        (["--device", "cpu", "--gpus", "999"], "--gpus 999: this machine can be measured with 1"),
        (["--fit", "gpus"], "--fit gpus: must be one of batch, ids"),
        (["--may-change", "batch"], "--may-change batch: must be of micro-batches, momentum"),
        (["--memory", "1XB"], "--memory 1XB: "),
        pytest.param(
            ["--memory", "1MiB"],
            "memory 1.0MiB: the least for 10,000 identities and 4 images a",
            marks=pytest.mark.slow,
        ),
        (["--gpus", "3", "--batch-per-gpu", "0", "--global-batch-size", "3"], "needs 2 images at"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p"
    assert main(["plan", "quickstart", *FLAGS, *flags, "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not out.exists()


def test_the_recipe_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpus", "8"]) == 2
    assert "name a recipe first" in capsys.readouterr().err
    assert main(["plan"]) == 0
    assert "facetrain plan memory RECIPE" in capsys.readouterr().out


def test_a_fit_of_identities_needs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--device", "rtx2080ti", "--batch-per-gpu", "4", "--fit", "ids", "--memory", "30MiB"]
    assert main(["plan", "quickstart", *flags, "--out", str(tmp_path / "p")]) == 0
    assert "largest that fits: " in capsys.readouterr().out
