"""What the command line makes of errors, and what it says was typed."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain.command import command_line, one_line_errors, run_recipe
from facetrain.config import FlatRunConfig, HeadConfig, RunConfig
from facetrain.distributed import PeerLostError
from facetrain.errors import ConfigError, FacetrainError, TrainingStopped
from facetrain.memory import MemoptError
from facetrain_datasets.errors import DatasetError

RECIPE = """
import sys
from dataclasses import dataclass, field
from facetrain.command import command_line, run_recipe
from facetrain.config import FlatRunConfig, RunConfig

@dataclass(frozen=True)
class Flags:
    run: FlatRunConfig = field(default_factory=RunConfig)

def main(flags):
    sys.stdout.write(command_line() + "\\n")
"""
GUARD = """
if __name__ == "__main__":
    raise SystemExit(run_recipe(main, Flags, __file__))
"""


def _raise(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FacetrainError("--x"), "error: --x"),
        (ConfigError(["--x", "--y"]), "error: --x; --y"),
        (DatasetError("a.jpg"), "error: a.jpg"),
        (MemoptError("1 MiB"), "error: 1 MiB"),
        (
            OSError(28, "No space left on device", "/out/model.pt"),
            "error: /out/model.pt: No space left on device; free space or choose another folder "
            "with --out",
        ),
        (
            OSError(28, "No space left on device"),
            "error: No space left on device; free space or choose another folder with --out",
        ),
        (
            PermissionError(13, "Permission denied", "/out/model.pt"),
            "error: /out/model.pt: Permission denied; change its permissions or, where it is to "
            "be written, choose another folder with --out",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "a\n\x1b[31m\udcff.jpg"),
            r"error: a\n\x1b[31m\udcff.jpg: No such file or directory; check the path",
        ),
        (FacetrainError("action a\nb"), r"error: action a\nb"),
        (
            FacetrainError("x" * 10_000 + "; do this"),
            f"error: {'x' * 900} ... {'x' * 291}; do this",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            "error: a loader process was killed (DataLoader worker (pid 7) is killed by signal: "
            "Killed.): where memory runs out, give fewer --num-workers",
        ),
        (
            MemoryError("Unable to allocate 1 PiB"),
            "error: not enough memory (Unable to allocate 1 PiB); give less data at once, or free "
            "some",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "a.jpg"),
            "error: a.jpg: No such file or directory; check the path",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one_line_errors(_raise(error)) == 2
    assert capsys.readouterr().err == line + "\n"


def test_other_ends_have_codes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line_errors(lambda: 0) == 0
    assert one_line_errors(_raise(PeerLostError("lost contact"))) == 1
    assert one_line_errors(_raise(TrainingStopped())) == 130
    assert one_line_errors(_raise(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: lost contact\n"


@pytest.mark.parametrize(
    "defect",
    [
        ValueError("ours"),
        RuntimeError("ours"),
        KeyError("k"),
        OSError("nameless"),
        PermissionError(1, "no file's"),
    ],
)
def test_a_defect_keeps_its_traceback(defect: Exception) -> None:
    with pytest.raises(type(defect)) as raised:
        one_line_errors(_raise(defect))
    assert raised.value is defect


def test_contradictory_variables_of_a_launcher_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from facetrain.distributed import World

    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def run() -> int:
        World.from_environment()
        return 0

    assert one_line_errors(run) == 2
    assert capsys.readouterr().err.startswith("error: environment RANK=5, WORLD_SIZE=2")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["/usr/bin/facetrain", "train", "lfw", "--data", "a b"],
            "facetrain train lfw --data 'a b'",
        ),
        (["recipes/lfw.py", "--lr", "1"], "python recipes/lfw.py --lr 1"),
    ],
)
def test_command_line_is_what_was_typed(
    argv: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FACETRAIN_COMMAND", raising=False)
    monkeypatch.setattr(sys, "argv", argv)
    assert command_line() == expected
    monkeypatch.setenv("FACETRAIN_COMMAND", "facetrain train lfw")
    assert command_line() == "facetrain train lfw"


@pytest.mark.parametrize("num_processes", ["1", "2"])
@pytest.mark.parametrize("guard", ["", GUARD])
def test_each_process_runs_main_and_knows_what_was_typed(
    guard: str, num_processes: str, tmp_path: Path
) -> None:
    """Started by `facetrain train`, a recipe needs no guard; as a script it does."""
    (tmp_path / "random.py").write_text(RECIPE + guard)
    flags = ["--num-processes", num_processes]
    # The name of a module that everybody imports, in a folder that is not the working folder.
    script = str(tmp_path / "random.py")
    program = "import sys; from facetrain_tools.cli import main; sys.exit(main())"
    facetrain = tmp_path / "facetrain"
    facetrain.write_text(program)
    typed = ["train", script, *flags]
    (tmp_path / "cwd").mkdir()
    run = subprocess.run(
        [sys.executable, "-I", str(facetrain), *typed],
        cwd=tmp_path / "cwd",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [" ".join(["facetrain", *typed])] * int(num_processes)


def test_a_script_starts_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE + GUARD)
    run = subprocess.run(
        [sys.executable, "mine.py", "--num-processes", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    typed = "python mine.py --num-processes 2"
    assert run.stdout.splitlines() == [typed, typed]


@pytest.mark.parametrize(("flags", "name"), [([], "my_recipe"), (["--name", "other"], "other")])
def test_a_run_is_named_after_its_recipe_unless_told_otherwise(flags: list[str], name: str) -> None:
    seen: list[str | None] = []
    recipe = importlib.import_module("facetrain_recipes.quickstart")
    arguments = [*flags, "--num-processes", "1"]
    code = run_recipe(
        lambda parsed: seen.append(parsed.run.name), recipe.Flags, "some/my_recipe.py", arguments
    )
    assert (code, seen) == (0, [name])


def _head(recipe: str | type, *arguments: str) -> HeadConfig:
    """The head that a recipe's `main` is given."""
    seen: list[HeadConfig] = []
    flags_type, needed = recipe, ["--num-processes", "1"]
    if isinstance(recipe, str):
        flags_type = importlib.import_module(f"facetrain_recipes.{recipe}").Flags
        needed += ["--data", "d", "--protocols", "p"] if recipe == "lfw" else []
    code = run_recipe(
        lambda flags: seen.append(flags.run.head),
        flags_type,  # type: ignore[arg-type]
        "recipe.py",
        [*needed, *arguments],
    )
    assert code == 0
    return seen[0]


@pytest.mark.parametrize("recipe", ["lfw", "quickstart"])
def test_another_margin_does_not_get_the_value_of_the_recipes_own(recipe: str) -> None:
    flags = importlib.import_module(f"facetrain_recipes.{recipe}").Flags
    (own,) = (f.default_factory().head for f in dataclasses.fields(flags) if f.name == "run")
    assert own.margin_value is not None
    assert _head(recipe).margin_value == own.margin_value
    assert _head(recipe, "--margin", own.margin).margin_value == own.margin_value
    assert _head(recipe, "--margin", "arcface").margin_value is None
    assert _head(recipe, "--margin=combined").margin_value is None
    for given in (["--margin-value", "0.3"], ["--margin-value=0.3"], ["--margin_value", "0.3"]):
        assert _head(recipe, "--margin", "arcface", *given).margin_value == 0.3


@dataclasses.dataclass(frozen=True)
class WithOptions:
    run: FlatRunConfig = dataclasses.field(
        default_factory=lambda: RunConfig(
            head=HeadConfig(margin="combined", margin_options=("m2=0.3",))
        )
    )


def test_another_margin_does_not_get_the_options_of_the_recipes_own() -> None:
    assert _head(WithOptions).margin_options == ("m2=0.3",)
    assert _head(WithOptions, "--margin", "arcface").margin_options == ()
    given = _head(WithOptions, "--margin", "adaface", "--margin-options", "h=0.4")
    assert given.margin_options == ("h=0.4",)
