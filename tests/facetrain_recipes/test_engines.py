"""A run is the same on either engine and under every launcher, also when it changes midway."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from facetrain_tools.cli import main
from tests.facetrain_recipes.conftest import MiniLfw
from tests.ranks import needs_horovod

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "lfw.py"
COMMAND = [sys.executable, "-m", "facetrain_tools.cli"]

pytestmark = needs_horovod


def _train(mini: MiniLfw, *more: str) -> dict[int, float]:
    """Loss of every step of a run of two processes, by our own launcher."""
    return _run(mini, [*COMMAND, *mini.flags(*more, num_processes=2)])


def _run(mini: MiniLfw, command: list[str]) -> dict[int, float]:
    run = subprocess.run(
        command,
        cwd=mini.root,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "on 2 processes" in run.stdout
    lines = (mini.root / "run" / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def _set_back(mini: MiniLfw, finished: MiniLfw) -> None:
    """`mini` becomes a run that stopped after the second of `finished`'s four steps."""
    shutil.copytree(finished.root / "run", mini.root / "run")
    shutil.rmtree(mini.root / "run" / "checkpoints" / "step-00000004")
    (mini.root / "run" / "results.json").unlink()


@pytest.fixture(scope="module")
def torch_run(
    drawn_faces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MiniLfw, dict[int, float]]:
    mini = MiniLfw(tmp_path_factory.mktemp("torch") / "set")
    shutil.copytree(drawn_faces, mini.root)
    return mini, _train(mini, "--engine", "torch")


@pytest.fixture(scope="module")
def horovod_run(
    drawn_faces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MiniLfw, dict[int, float]]:
    mini = MiniLfw(tmp_path_factory.mktemp("horovod") / "set")
    shutil.copytree(drawn_faces, mini.root)
    return mini, _train(mini, "--engine", "horovod")


def _expected(losses: dict[int, float]) -> object:
    assert list(losses) == [1, 2, 3, 4]
    # Sums of two ranks round alike in any order; the rest is the same code.
    return pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
def test_losses_are_those_of_the_torch_engine(
    torch_run: tuple[MiniLfw, dict[int, float]], horovod_run: tuple[MiniLfw, dict[int, float]]
) -> None:
    assert horovod_run[1] == _expected(torch_run[1])


@pytest.mark.slow
def test_horovodrun_starts_a_recipe_and_goes_on_with_a_run_of_torchs(
    mini_lfw: MiniLfw, torch_run: tuple[MiniLfw, dict[int, float]]
) -> None:
    _set_back(mini_lfw, torch_run[0])
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    losses = _run(
        mini_lfw,
        [
            *(horovodrun, "-np", "2", sys.executable, str(RECIPE)),
            *mini_lfw.flags("--resume")[2:],
        ],
    )
    assert losses == _expected(torch_run[1])


@pytest.mark.slow
def test_torch_goes_on_with_a_run_of_horovods(
    mini_lfw: MiniLfw,
    torch_run: tuple[MiniLfw, dict[int, float]],
    horovod_run: tuple[MiniLfw, dict[int, float]],
) -> None:
    _set_back(mini_lfw, horovod_run[0])
    assert _train(mini_lfw, "--engine", "torch", "--resume") == _expected(torch_run[1])


@pytest.mark.slow
def test_bad_input_is_said_once_for_all_processes(
    mini_lfw: MiniLfw, capfd: pytest.CaptureFixture[str]
) -> None:
    mini_lfw.image(1, 1).write_bytes(b"\xff\xd8 cut")
    assert main(mini_lfw.flags("--engine", "horovod", num_processes=2)) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {mini_lfw.image(1, 1)}: not a readable image")
    assert error.count("\n") == 1
