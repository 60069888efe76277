"""Starts local processes of one run, and ends all of them when one fails.

What torchrun does for a cluster, kept small for one machine: no port to choose (ranks meet through
a file), no traceback of the launcher's own, and the exit code of the process that failed of itself.
A process that dies with an error writes it where the launcher finds it; the launcher prints each
distinct message once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from facetrain.distributed.cpus import usable_cpus
from facetrain.distributed.world import INIT_METHOD_VARIABLE
from facetrain.errors import EXIT_BAD_INPUT, FacetrainError

_ERROR_FILE_VARIABLE = "FACETRAIN_ERROR_FILE"
_SECONDARY = ".secondary"
_POLL_S = 0.05
_SETTLE_S = 1.0
_GRACE_S = 4.0


def launch(
    command: Sequence[str], num_processes: int, environment: Mapping[str, str] | None = None
) -> int:
    """Run `command` as `num_processes` ranks on this machine; its exit code.

    The first rank that fails ends the others. The first Ctrl-C or SIGTERM asks the ranks to save
    and leave; the second one kills them. Should this process be killed, they end
    themselves.

    Args:
        environment: variables for the ranks, besides this process's own.

    Returns:
        0, or the exit code of the rank that failed of itself: 2 where one reported bad input,
        128 + signal where a signal ended it.

    Raises:
        FacetrainError: the system starts no more processes.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="facetrain-") as name, _Signals() as signals:
        folder = Path(name)
        variables = {**os.environ, **(environment or {})}
        try:
            for rank in range(num_processes):
                ranks.append(_start(command, rank, num_processes, folder, variables))
            ended = _wait(ranks, signals)
        finally:
            _end(ranks)
        code = _deciding_code(ended, folder)
        if -code in signals.sent:  # as the user wished, before or against an orderly stop
            print("stopped at once; nothing was saved by it", flush=True)
            return 128 + signal.SIGINT
        _print_errors(folder, code, num_processes)
        return code if code >= 0 else 128 - code


def report_error(message: str, *, secondary: bool = False) -> None:
    """Say a one-line error: to our launcher if there is one, else on stderr.

    Args:
        message: of bad input, for which the whole run's exit code is 2.
        secondary: it only follows from another rank's failure, whose message is the better one.
    """
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if path is None:
        print(message, file=sys.stderr, flush=True)
    else:
        Path(path + _SECONDARY * secondary).write_text(message, encoding="utf-8")


def most_processes() -> int:
    """Local processes that can be of use here; many more would only exhaust the memory."""
    return max(8, 4 * usable_cpus())


def _start(
    command: Sequence[str],
    rank: int,
    num_processes: int,
    folder: Path,
    variables: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    environment = {
        **variables,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        INIT_METHOD_VARIABLE: f"file://{folder}/meet",
        _ERROR_FILE_VARIABLE: str(folder / f"error-{rank}"),
    }
    # All ranks are on this machine: its host name need not resolve.
    if sys.platform.startswith("linux"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Ranks share the cores; unset, each would start a thread per core.
    threads = max(1, usable_cpus() // num_processes)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        # A session of its own, so that Ctrl-C reaches a rank only through this process, once.
        return subprocess.Popen(
            command, env=environment, start_new_session=True, preexec_fn=_follower(os.getpid())
        )
    except OSError as error:
        raise FacetrainError(
            f"process {rank} of {num_processes} cannot be started ({error.strerror}: "
            f"{command[0]}); use fewer processes, or check that this file can be run"
        ) from error


def _follower(parent: int) -> Callable[[], None] | None:
    """What a rank does before anything else: ask Linux to kill it when its launcher dies."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def follow() -> None:
        prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)

    return follow


class _Signals:
    """Ctrl-C and SIGTERM, noted from before the first rank starts until the last has ended.

    The first asks the ranks to stop (SIGTERM), the second kills them.

    Attributes:
        sent: what ranks were sent.
    """

    def __init__(self) -> None:
        self.sent: list[int] = []
        self._noted: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(number)

    def pass_on(self, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
        while self._noted:
            self._noted.pop(0)
            # Not SIGINT: Python, still importing, would answer it with a traceback.
            number = signal.SIGKILL if self.sent else signal.SIGTERM
            self.sent.append(number)
            for rank in ranks:
                if rank.poll() is None:
                    rank.send_signal(number)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], signals: _Signals) -> dict[int, int]:
    """Return codes by rank, in the order they ended: of all, or those around the first failure."""
    ended: dict[int, int] = {}
    deadline = float("inf")
    while len(ended) < len(ranks) and time.monotonic() < deadline:
        signals.pass_on(ranks)
        for rank, process in enumerate(ranks):
            code = process.poll()
            if rank not in ended and code is not None:
                ended[rank] = code
                if code != 0:
                    # Ranks with the same bad input, or a better reason, are about to say so.
                    deadline = min(deadline, time.monotonic() + _SETTLE_S)
        time.sleep(_POLL_S)
    return ended


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, and leave no process behind."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + _GRACE_S
    while any(rank.poll() is None for rank in ranks):
        if time.monotonic() > deadline:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
        time.sleep(_POLL_S)


def _deciding_code(ended: Mapping[int, int], folder: Path) -> int:
    """The return code that says what went wrong, whichever rank was seen to end first."""
    if any(path.suffix != _SECONDARY for path in folder.glob("error-*")):
        return EXIT_BAD_INPUT
    failed = {rank: code for rank, code in ended.items() if code != 0}
    lost = {path.stem for path in folder.glob("error-*")}  # all secondary
    own = [code for rank, code in failed.items() if f"error-{rank}" not in lost]
    return next(iter(own or failed.values()), 0)


def _print_errors(folder: Path, code: int, num_processes: int) -> None:
    """Each distinct message once; what only follows from other failures stays unsaid."""
    files = sorted(folder.glob("error-*"))
    first = [path for path in files if path.suffix != _SECONDARY]
    messages = [path.read_text(encoding="utf-8") for path in first]
    if not messages and code < 0:
        often = " (often: out of memory)" if -code == signal.SIGKILL else ""
        messages = [
            f"error: one of {num_processes} processes was ended by {_signal_name(-code)}{often}, "
            "so the others were too; go on from the last checkpoint with --resume"
        ]
    if not messages:
        messages = [path.read_text(encoding="utf-8") for path in files]
    for message in dict.fromkeys(messages):
        print(message, file=sys.stderr)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
