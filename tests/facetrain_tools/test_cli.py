"""The `facetrain` command: what it lists, and that every part of it can be asked for help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from facetrain.backbones import BACKBONES
from facetrain.margins import MARGINS
from facetrain_datasets.transforms import TRANSFORMS
from facetrain_tools.cli import COMMANDS, main
from facetrain_tools.train import recipe_names

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("facetrain 0.")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: facetrain {command}")


def test_every_recipe_script_is_a_recipe_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.stem for path in RECIPES.glob("*.py"))
    assert recipe_names() == names == ["faces", "lfw", "quickstart"]
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            main(["train", name, "--help"])
        out = capsys.readouterr().out
        for known in (*BACKBONES, *MARGINS, *TRANSFORMS):
            assert known in out
        for flag in ("--backbone", "--margin", "--memory", "--num-processes", "--resume"):
            assert flag in out


def test_a_recipe_of_ones_own_needs_main_and_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "mine.py"
    script.write_text("Flags = None\n")
    assert main(["train", str(script)]) == 2
    assert "has no main; copy the form of recipes/lfw.py" in capsys.readouterr().err


def test_a_copied_recipe_runs_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "mine.py"
    script.write_text((RECIPES / "lfw.py").read_text().replace("epochs=", "epochs=1 * "))
    with pytest.raises(SystemExit, match="0"):
        main(["train", str(script), "--help"])
    assert "--protocols" in capsys.readouterr().out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_does_not_fit_on_its_disk_is_one_line(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "facetrain_tools.cli", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device; free space")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_during_an_import_ends_the_process_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('begun', flush=True)\nimport time\ntime.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "facetrain_tools.cli", "data", "inspect", "faces"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_a_defect_is_not_taken_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("facetrain_tools.cli.run", fail)
    with pytest.raises(OSError, match="Invalid argument"):
        main(["doctor"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f"{sys.executable} -m facetrain_tools.cli train lfw --help | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("usage: facetrain train lfw")
    assert done.stderr == ""
