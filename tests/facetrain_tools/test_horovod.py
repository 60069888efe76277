"""`facetrain horovod build`: what it would run, and what it says where that cannot be. No build."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain_tools import horovod
from facetrain_tools.cli import main


def _program(folder: Path, name: str, output: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {output}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, with a compiler, a CMake and make."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, output in (("c++", "c++"), ("cmake", "cmake version 3.25.1"), ("make", "make")):
        _program(folder, name, output)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "HOROVOD_CMAKE", "CMAKE_GENERATOR", "HOROVOD_NCCL_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


class _Pip:
    """Stands in for pip: notes what it is called with, and makes the wheel asked for."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.commands: list[Sequence[str]] = []
        self.environment: dict[str, str] = {}

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if "wheel" in command[:4]:
            self.environment = options["env"]
            wrapper = Path(self.environment["CXX"])
            self.wrapper = wrapper.read_text()
            options["stdout"].write("c++: internal compiler error\n")
            if self.code == 0:
                folder = Path(command[command.index("--wheel-dir") + 1])
                (folder / "horovod-0.28.1-cp3-cp3-any.whl").touch()
        return subprocess.CompletedProcess(command, self.code if "wheel" in command[:4] else 0)


def _without_pip(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> _Pip:
    pip = _Pip(code)
    monkeypatch.setattr(horovod, "check_cmake", lambda: None)
    monkeypatch.setattr(horovod.subprocess, "run", pip)
    return pip


def test_the_wheel_is_built_for_gloo_and_torch_and_kept(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = _without_pip(monkeypatch)
    wheel = horovod.build_wheel(tmp_path / "wheels")
    assert wheel == tmp_path / "wheels" / "horovod-0.28.1-cp3-cp3-any.whl"
    assert wheel.exists()
    needs, build = pip.commands
    assert {"setuptools", "cloudpickle", "psutil", "pyyaml", "packaging"} <= set(needs)
    assert build[:4] == [sys.executable, "-m", "pip", "wheel"]
    assert {"--no-build-isolation", "--no-deps", "horovod==0.28.1"} <= set(build)
    expected = {
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    assert expected.items() <= pip.environment.items()
    assert pip.environment["MAKEFLAGS"].startswith("-j")
    assert f"exec {tools / 'c++'} " in pip.wrapper
    assert not any(torch.__version__ in part or part == "torch" for part in needs)
    assert "building Horovod 0.28.1 for torch" in capsys.readouterr().out


def test_a_failed_build_shows_the_end_of_its_log(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_pip(monkeypatch, code=1)
    with pytest.raises(FacetrainError, match=r"building Horovod 0\.28\.1 failed; .*build\.log"):
        horovod.build_wheel(tmp_path / "wheels")
    assert "internal compiler error" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["build.log"]


def test_the_wrapper_asks_for_cpp17_instead_of_cpp14(tmp_path: Path) -> None:
    shows = _program(tmp_path, "shows arguments", '"$@"')
    wrapper = horovod.write_compiler_wrapper(tmp_path, [str(shows), "-m64"])
    arguments = ["-O2", "-std=c++14", "-DNAME=a b", "x.cc"]
    run = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout == "-m64 -O2 -std=c++17 -DNAME=a b x.cc\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tools: (tools / "c++").unlink(), r"no C\+\+ compiler here .*apt-get install g\+\+"),
        (lambda tools: (tools / "cmake").unlink(), r"no cmake here .*\(needs 3\.13\); apt-get"),
        (lambda tools: (tools / "make").unlink(), "no make here"),
        (
            lambda tools: _program(tools, "cmake", "cmake version 3.5.1"),
            r"cmake 3\.5 is too old for Horovod \(needs 3\.13\); apt-get install cmake",
        ),
    ],
)
def test_a_missing_tool_is_named_in_one_line(
    spoil: Callable[[Path], None],
    message: str,
    tools: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(tools)
    monkeypatch.setattr(horovod, "installed_version", lambda: None)
    assert main(["horovod", "build", "--wheel-dir", str(tmp_path / "wheels")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not (tmp_path / "wheels").exists()


def test_a_compiler_that_is_asked_for_must_be_there(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++-99 -m64")
    with pytest.raises(FacetrainError, match=r"no C\+\+ compiler g\+\+-99 of the variable CXX"):
        horovod.find_compiler()


def test_a_kept_wheel_is_installed_without_a_build(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = _without_pip(monkeypatch)
    monkeypatch.setattr(horovod, "installed_version", lambda: None)
    monkeypatch.setattr(horovod, "trial_problem", lambda: None)
    wheel = tmp_path / horovod.wheel_key() / "horovod-0.28.1-cp3-cp3-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert main(["horovod", "build", "--wheel-dir", str(tmp_path)]) == 0
    assert [command[3] for command in pip.commands] == ["install", "install"]
    assert str(wheel) in pip.commands[1]
    assert f"wheel found: {wheel}" in capsys.readouterr().out


def test_a_wheel_that_does_not_work_is_told(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_pip(monkeypatch)
    monkeypatch.setattr(horovod, "trial_problem", lambda: "undefined symbol")
    assert main(["horovod", "build", "--wheel-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "could not sum a tensor (undefined symbol); delete" in error


def test_wheels_are_kept_by_torch_and_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.__version__ in horovod.wheel_key()
    assert sys.implementation.cache_tag in horovod.wheel_key()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert horovod.default_wheel_dir() == Path("/somewhere/facetrain/horovod")


def test_nccl_is_used_where_torch_has_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nccl.h").touch()
    monkeypatch.setenv("HOROVOD_NCCL_HOME", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "HOROVOD_GPU_OPERATIONS" not in horovod.build_environment(tmp_path / "c++17")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    environment = horovod.build_environment(tmp_path / "c++17")
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["HOROVOD_NCCL_HOME"] == str(tmp_path)
    assert horovod.wheel_key().endswith("-nccl")
    monkeypatch.setenv("HOROVOD_NCCL_HOME", str(tmp_path / "absent"))
    assert horovod.nccl_home() is None


@pytest.mark.parametrize(
    ("cpus", "available_bytes", "expected"),
    [(4, None, 4), (4, 100 * 2**30, 4), (4, 5 * 2**30, 2), (4, 2**30, 1)],
)
def test_compilers_share_the_memory(cpus: int, available_bytes: int | None, expected: int) -> None:
    assert horovod.num_jobs(cpus, available_bytes) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove"], "error: facetrain horovod remove: no such action; use build\n"),
        (["build", "--jobs", "3"], "Unrecognized options: --jobs"),
    ],
)
def test_unknown_words_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["horovod", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
