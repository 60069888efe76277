"""Runs of several real processes: one message, one exit code, nobody left behind, and resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from facetrain_tools.cli import main
from tests.facetrain_recipes.conftest import MiniLfw

COMMAND = [sys.executable, "-m", "facetrain_tools.cli"]
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "lfw.py"


def _run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def _ranks_of(folder: Path) -> list[int]:
    """Processes that work on `folder`, by what their command line names."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(folder).encode() in command and state != "Z":
                found.append(int(entry.name))
    return found


def _nobody_left(folder: Path) -> bool:
    deadline = time.monotonic() + 10
    while _ranks_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _ranks_of(folder)


def _losses(mini: MiniLfw) -> dict[int, float]:
    lines = (mini.root / "run" / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def _forget_the_end(mini: MiniLfw) -> None:
    """Leaves the run as if it had been killed after the third of its four steps."""
    (mini.root / "run" / "results.json").unlink()
    shutil.rmtree(mini.root / "run" / "checkpoints" / "step-00000004")


def test_two_processes_train_write_everything_and_one_goes_on(
    mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(mini_lfw.flags(num_processes=2), mini_lfw.root)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    folder = mini_lfw.root / "run"
    assert f"report  {folder / 'report.html'}" in run.stdout
    page = (folder / "report.html").read_text()
    for text in (
        "ROC",
        "Training loss",
        "TAR@FAR",
        "squared L2",
        "Peak bytes",
        "Images per second",
    ):
        assert text in page
    results = json.loads((folder / "results.json").read_text())
    assert set(results["systems"]) == {"trained network", "untrained network", "raw pixels + PCA"}
    assert results["step"] == 4
    assert len(results["memory"]) == 2
    for rank in results["memory"]:
        assert 0 < rank["measured_peak_bytes"] <= rank["predicted_peak_bytes"]
        assert rank["predicted_peak_bytes"] <= rank["budget_bytes"]
    assert {path.name for path in folder.iterdir()} >= {
        "model.pt",
        "config.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
    }
    assert (
        main(
            [
                *("eval", "verification", "--model", str(folder), "--data", str(mini_lfw.data)),
                *("--pairs", str(mini_lfw.protocols / "lfw_pairsDevTest.txt"), "--folds", "4"),
            ]
        )
        == 0
    )

    losses = _losses(mini_lfw)
    assert list(losses) == [1, 2, 3, 4]
    _forget_the_end(mini_lfw)
    # Its micro-batches are the rows that each of two processes had, so that BatchNorm sees the same
    # ones, and only the order differs in which gradients and losses are summed.
    assert main(mini_lfw.flags("--micro-batches", "2", "--resume")) == 0
    assert "resumed from step 2 of 4" in capsys.readouterr().out
    resumed = _losses(mini_lfw)
    assert list(resumed) == list(losses)
    assert (resumed[1], resumed[2]) == (losses[1], losses[2])
    # The same weights, so the same but for float32's 1.2e-7 in a few sums; then weights that such
    # rounding has changed, which BatchNorm over three rows enlarges (measured: 6e-7).
    assert resumed[3] == pytest.approx(losses[3], rel=1e-6)
    assert resumed[4] == pytest.approx(losses[4], rel=1e-5)


@pytest.mark.slow
def test_a_head_of_many_options_trains_and_resumes(mini_lfw: MiniLfw) -> None:
    options = ["--margin", "adaface", "--sample-rate", "0.5", "--sub-centers", "2"]
    options += ["--optimizer", "adamw", "--lr", "0.1", "--head-schedule", "class_tiles"]
    run = _run(mini_lfw.flags(*options, num_processes=2), mini_lfw.root)
    assert run.returncode == 0, run.stderr
    assert "class tiles of" in run.stdout
    assert "50% of the identities in a step" in run.stdout
    losses = _losses(mini_lfw)
    assert list(losses) == [1, 2, 3, 4]
    _forget_the_end(mini_lfw)
    run = _run(mini_lfw.flags(*options, "--resume", num_processes=2), mini_lfw.root)
    assert run.returncode == 0, run.stderr
    assert "resumed from step 2 of 4" in run.stdout
    # To the bit: the same sums in the same order, whatever the options.
    assert _losses(mini_lfw) == losses


@pytest.mark.slow
def test_a_bad_image_is_said_once_for_all_processes(mini_lfw: MiniLfw) -> None:
    mini_lfw.image(1, 1).write_bytes(b"\xff\xd8 cut")
    run = _run(mini_lfw.flags(num_processes=2), mini_lfw.root)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {mini_lfw.image(1, 1)}: not a readable image")
    assert run.stderr.count("\n") == 1
    assert _nobody_left(mini_lfw.root)


def test_more_processes_than_identities_is_refused(mini_lfw: MiniLfw) -> None:
    run = _run(mini_lfw.flags("--global-batch-size", "10", num_processes=5), mini_lfw.root)
    assert run.returncode == 2
    assert run.stderr == (
        "error: 5 processes for 4 identities: each needs one at least; use at most 4 processes\n"
    )
    assert _nobody_left(mini_lfw.root)


def _start_long(mini: MiniLfw, *more: str) -> subprocess.Popen[str]:
    """A run of two processes that has begun to train."""
    process = subprocess.Popen(
        [*COMMAND, *mini.flags("--epochs", "400", *more, num_processes=2)],
        cwd=mini.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = mini.root / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 4):
        assert time.monotonic() < deadline, process.communicate()
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on_with_1_or_3_processes(mini_lfw: MiniLfw) -> None:
    process = _start_long(mini_lfw)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    assert "checkpoint saved; go on with the same command and --resume" in out
    assert _nobody_left(mini_lfw.root)

    before = _losses(mini_lfw)
    stopped_at = max(before)
    for num_processes in (1, 3):
        # Stops again soon: the schedule of 400 epochs is part of the run.
        process = subprocess.Popen(
            [*COMMAND, *mini_lfw.flags("--epochs", "400", "--resume", num_processes=num_processes)],
            cwd=mini_lfw.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while max(_losses(mini_lfw), default=0) < stopped_at + 3:
            assert time.monotonic() < deadline, process.communicate()
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert f"resumed from step {stopped_at}" in out
        losses = _losses(mini_lfw)
        assert {step: losses[step] for step in before} == before
        stopped_at, before = max(losses), losses
    assert list(losses) == list(range(1, stopped_at + 1))


def test_a_killed_rank_ends_the_others_with_a_message(mini_lfw: MiniLfw) -> None:
    process = _start_long(mini_lfw)
    ranks = [pid for pid in _ranks_of(mini_lfw.root) if pid != process.pid]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert err.startswith("error: one of 2 processes was ended by SIGKILL")
    assert "--resume" in err
    assert err.count("\n") == 1
    assert _nobody_left(mini_lfw.root)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent death signal is Linux's")
def test_ranks_do_not_outlive_a_killed_command(mini_lfw: MiniLfw) -> None:
    process = _start_long(mini_lfw)
    process.kill()
    process.communicate(timeout=60)
    assert _nobody_left(mini_lfw.root)


@pytest.mark.slow
def test_torchrun_runs_the_recipe_script(mini_lfw: MiniLfw) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(RECIPE), *mini_lfw.flags()[2:]],
        cwd=mini_lfw.root,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert run.returncode == 0, run.stderr
    assert "4 on 2 processes" in run.stdout
