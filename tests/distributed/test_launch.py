"""Ranks as small scripts: exit codes, messages, signals, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from facetrain.distributed import launch as launch_module
from facetrain.distributed.launch import launch, most_processes
from facetrain.errors import FacetrainError

PREFACE = """
import os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
def fail(code, message="", suffix=""):
    if message:
        pathlib.Path(os.environ["FACETRAIN_ERROR_FILE"] + suffix).write_text(message)
    os._exit(code)
def kill(number):
    os.kill(os.getpid(), number)
    time.sleep(60)
"""


def _launch(script: str, num_processes: int = 2, **variables: str) -> int:
    return launch([sys.executable, "-c", PREFACE + script], num_processes, variables)


def test_ranks_are_told_their_place(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "WORD")
    script = f"""
pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(" ".join(os.environ[n] for n in {names}))
"""
    assert _launch(script, 3, WORD="hello") == 0
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 3 3 hello"


@pytest.mark.parametrize("first", [0, 1])
def test_bad_input_of_one_rank_outweighs_the_peers_it_left(
    first: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever rank is seen to end first."""
    script = f"""
time.sleep(0.0 if rank == {first} else 0.4)
if rank == 1:
    fail(2, "error: a.jpg is grey")
fail(1, "error: lost contact", ".secondary")
"""
    assert _launch(script) == 2
    assert capfd.readouterr().err == "error: a.jpg is grey\n"


def test_a_killed_rank_outweighs_the_peers_it_left(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
if rank == 1:
    time.sleep(0.4)
    kill(signal.SIGKILL)
fail(1, "error: lost contact", ".secondary")
"""
    assert _launch(script) == 128 + signal.SIGKILL
    error = capfd.readouterr().err
    assert error.startswith(
        "error: one of 2 processes was ended by SIGKILL (often: out of memory), so the others"
    )
    assert error.count("\n") == 1


@pytest.mark.parametrize("code", [1, 3, 137, 255])
def test_an_exit_code_is_passed_on(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert _launch(f"fail({code} if rank else 0)") == code
    assert capfd.readouterr().err == ""


def test_a_signal_without_a_name_is_given_by_number(capfd: pytest.CaptureFixture[str]) -> None:
    number = signal.SIGRTMIN + 3
    assert _launch(f"kill({number}) if rank else fail(0)") == 128 + number
    error = capfd.readouterr().err
    assert f"ended by signal {number}, so" in error


def _rank_pids(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 20
    while len(files := list(folder.glob("pid-*"))) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return [int(path.name.removeprefix("pid-")) for path in files]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _sleepers(folder: Path, on_signal: str) -> str:
    return f"""
signal.signal(signal.SIGTERM, {on_signal})
pathlib.Path({str(folder)!r}, f"pid-{{os.getpid()}}").touch()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("on_signal", "presses"), [("lambda *_: os._exit(130)", 1), ("signal.SIG_IGN", 2)]
)
def test_ctrl_c_asks_ranks_to_stop_and_the_second_kills(
    on_signal: str, presses: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def press() -> None:
        _rank_pids(tmp_path, 2)
        for _ in range(presses):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    thread = threading.Thread(target=press)
    thread.start()
    code = _launch(_sleepers(tmp_path, on_signal))
    thread.join()
    assert code == 130
    assert capfd.readouterr().err == ""
    assert not any(_alive(pid) for pid in _rank_pids(tmp_path, 2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_ranks_start_reaches_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = launch_module._start

    def start(command: Any, rank: int, *arguments: Any) -> subprocess.Popen[bytes]:
        process = real(command, rank, *arguments)
        _rank_pids(tmp_path, rank + 1)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(launch_module, "_start", start)
    assert _launch(_sleepers(tmp_path, "lambda *_: os._exit(130)"), 3) == 130
    pids = _rank_pids(tmp_path, 3)
    assert len(pids) == 3
    assert not any(_alive(pid) for pid in pids)


def test_a_rank_that_cannot_start_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def popen(command: Any, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        if env["RANK"] == "1":
            _rank_pids(tmp_path, 1)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(command, env=env, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(
        FacetrainError, match=r"process 1 of 2 cannot be started \(Resource .*fewer processes"
    ):
        _launch(_sleepers(tmp_path, "signal.SIG_DFL"))
    (pid,) = _rank_pids(tmp_path, 1)
    assert not _alive(pid)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ranks_share_the_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launch_module, "usable_cpus", lambda: 7)
    assert _launch('fail(int(os.environ["OMP_NUM_THREADS"]) - 3)') == 0
    assert most_processes() == 28
