"""`facetrain horovod build`: builds Horovod for the torch that is installed, and installs it.

Horovod's package is source only, and asks for C++14 where torch's headers need C++17: the compiler
is called through a small wrapper. What comes out fits one torch version and one Python version; the
wheel is kept, so that another environment with the same two gets it in seconds.

https://horovod.readthedocs.io/en/stable/install.html (the environment variables).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from facetrain.command import parse_flags
from facetrain.distributed.cpus import usable_cpus
from facetrain.errors import FacetrainError
from facetrain_tools.actions import Action, run_action
from facetrain_tools.doctor import available_memory_bytes

VERSION = "0.28.1"
REQUIREMENTS = (
    *("cffi>=1.4.0", "cloudpickle", "packaging", "psutil", "pyyaml"),  # Horovod's own
    "setuptools",  # builds it; horovodrun takes its distutils from Python 3.12 on
    "wheel",
)
_OLDEST_CMAKE = (3, 13)
_BYTES_PER_JOB = 2 * 2**30  # what the compiler takes for torch's headers
_LOG_FILE = "build.log"
_LAST_LINES = 12
_NCCL_HOMES = ("/usr", "/usr/local", "/usr/local/cuda")


@dataclass(frozen=True)
class BuildFlags:
    """Build Horovod for the torch of this environment, install it, and try it."""

    wheel_dir: Path | None = None
    """Where wheels are kept for the next time; default ~/.cache/facetrain/horovod."""


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    action = Action(
        lambda rest: build(parse_flags(BuildFlags, rest, "facetrain horovod build")),
        "[--wheel-dir DIR]",
        "Horovod for the torch of this environment (some minutes the first time)",
    )
    return run_action("horovod", {"build": action}, arguments)


def build(flags: BuildFlags) -> int:
    """Installs Horovod, from a kept wheel where there is one; the exit code.

    Raises:
        FacetrainError: a tool is missing, or the build or the trial failed.
    """
    if installed_version() == VERSION and trial_problem() is None:
        print(f"Horovod {VERSION} is installed and works")
        return 0
    folder = (flags.wheel_dir or default_wheel_dir()) / wheel_key()
    kept = sorted(folder.glob(f"horovod-{VERSION}-*.whl"))
    if kept:
        wheel, built = kept[0], "found"
        _pip("install", *REQUIREMENTS)
    else:
        started = time.monotonic()
        wheel = build_wheel(folder)
        built = f"built in {time.monotonic() - started:.0f} s"
    _pip("install", "--no-deps", "--force-reinstall", str(wheel))
    problem = trial_problem()
    if problem is not None:
        raise FacetrainError(
            f"Horovod was installed, but two processes could not sum a tensor ({problem}); delete "
            f"{wheel} and build again"
        )
    print(f"Horovod {VERSION} is installed and works; wheel {built}: {wheel}")
    return 0


def installed_version() -> str | None:
    """Of the Horovod in this environment."""
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None


def trial_problem() -> str | None:
    """None, or why a sum over two processes with Horovod failed."""
    command = [sys.executable, "-m", "facetrain_tools.collective_check", "horovod"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no answer in 120 s"
    if run.returncode == 0:
        return None
    said = run.stderr.strip().splitlines()
    return said[-1] if said else f"exit code {run.returncode}"


def default_wheel_dir() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "facetrain" / "horovod"


def wheel_key() -> str:
    """Names what a wheel fits: the versions of torch and Python, and the machine."""
    import torch

    python = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    nccl = "-nccl" if nccl_home() is not None else ""
    return f"torch-{torch.__version__}-{python}{nccl}"


def build_wheel(folder: Path) -> Path:
    """Builds the wheel into `folder`, which is made; its path. Takes about 5 minutes on 2 cores.

    Raises:
        FacetrainError: no compiler, no cmake, or the build failed; its log stays in `folder`.
    """
    compiler = find_compiler()
    check_cmake()
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / _LOG_FILE
    _pip("install", *REQUIREMENTS)
    with tempfile.TemporaryDirectory(prefix="facetrain-horovod-") as name:
        temporary = Path(name)
        environment = build_environment(write_compiler_wrapper(temporary, compiler))
        command = [
            *(sys.executable, "-m", "pip", "wheel", "--verbose", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--no-binary", "horovod", "--no-cache-dir"),
            *("--wheel-dir", str(temporary), f"horovod=={VERSION}"),
        ]
        with log_path.open("w", encoding="utf-8") as log:
            code = _run_with_clock(command, {**os.environ, **environment}, log)
        made = sorted(temporary.glob("horovod-*.whl"))
        if code != 0 or not made:
            lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
            print("\n".join(lines[-_LAST_LINES:]), file=sys.stderr)
            raise FacetrainError(f"building Horovod {VERSION} failed; the whole log: {log_path}")
        # Beside its place first: an interrupted copy must not look like a wheel.
        unfinished = Path(shutil.copy(made[0], folder / f"{made[0].name}.part"))
        return unfinished.replace(folder / made[0].name)


def build_environment(compiler: Path) -> dict[str, str]:
    """Variables for Horovod's setup: gloo and torch only, with NCCL where torch and it are here."""
    environment = {
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CXX": str(compiler),
        "MAKEFLAGS": f"-j{num_jobs(usable_cpus(), available_memory_bytes())}",
        # Horovod's bundled libraries declare CMake versions that CMake 4 no longer imitates.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    }
    home = nccl_home()
    if home is not None:
        environment |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": home}
    return environment


def num_jobs(num_cpus: int, available_bytes: int | None) -> int:
    """Compilers that run at a time: as many as CPUs, if their memory is there."""
    if available_bytes is None:
        return num_cpus
    return max(1, min(num_cpus, available_bytes // _BYTES_PER_JOB))


def nccl_home() -> str | None:
    """Folder of NCCL's headers and library; None where there is none, or torch is without CUDA."""
    import torch

    if torch.version.cuda is None:
        return None
    told = os.environ.get("HOROVOD_NCCL_HOME")
    for home in (told,) if told else _NCCL_HOMES:
        if (Path(home) / "include" / "nccl.h").is_file():
            return home
    return None


def find_compiler() -> list[str]:
    """The C++ compiler's command: CXX, or the system's.

    Raises:
        FacetrainError: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in (named,) if named else (["c++"], ["g++"], ["clang++"]):
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    wanted = f"C++ compiler {named[0]} of the variable CXX" if named else "C++ compiler"
    raise FacetrainError(f"no {wanted} here to build Horovod with; apt-get install g++ make cmake")


def check_cmake() -> None:
    """Horovod's setup would try to fetch a CMake by itself, and fail less clearly.

    Raises:
        FacetrainError: cmake or make is missing, or cmake is too old.
    """
    cmake = os.environ.get("HOROVOD_CMAKE", "cmake")
    needed = ".".join(map(str, _OLDEST_CMAKE))
    advice = "apt-get install cmake make, or pip install cmake"
    if shutil.which(cmake) is None:
        raise FacetrainError(f"no {cmake} here to build Horovod with (needs {needed}); {advice}")
    said = subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_CMAKE:
        version = f"{found[1]}.{found[2]}" if found else "of unknown version"
        raise FacetrainError(f"{cmake} {version} is too old for Horovod (needs {needed}); {advice}")
    if shutil.which("make") is None and "CMAKE_GENERATOR" not in os.environ:
        raise FacetrainError("no make here to build Horovod with; apt-get install make")


def write_compiler_wrapper(folder: Path, compiler: Sequence[str]) -> Path:
    """A program in `folder` that calls `compiler` with C++17 wherever C++14 is asked for."""
    path = folder / "c++17"
    path.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "    shift\n"
        '    [ "$argument" = -std=c++14 ] && argument=-std=c++17\n'
        '    set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.join(compiler)} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--quiet"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        said = run.stderr.strip().splitlines()
        cause = next((line for line in said if line.startswith("ERROR")), (said or ["no word"])[-1])
        raise FacetrainError(f"pip {' '.join(arguments)}: {cause}")


def _run_with_clock(command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> int:
    """The exit code; meanwhile one line tells the time that has passed."""
    import torch
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    what = f"building Horovod {VERSION} for torch {torch.__version__}, about 5 minutes on 2 cores"
    console = Console(stderr=True)
    if not console.is_terminal:
        print(what, flush=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task(what, total=None)
        return subprocess.run(
            command, env=dict(environment), stdout=log, stderr=subprocess.STDOUT
        ).returncode
