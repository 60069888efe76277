"""Starts local processes of one run, and ends all of them when one fails.

What torchrun does for a cluster, kept small for one machine: no port to choose (ranks meet through
a file), no traceback of the launcher's own, and the exit code of the process that failed first.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from facetrain.distributed.world import INIT_METHOD_VARIABLE

_ERROR_FILE_VARIABLE = "FACETRAIN_ERROR_FILE"
_SECONDARY = ".secondary"
_POLL_S = 0.05
_GRACE_S = 5.0


def launch(command: Sequence[str], num_processes: int) -> int:
    """Run `command` as `num_processes` ranks on this machine; its exit code.

    The first rank that fails ends the others. Ctrl-C or SIGTERM is passed on once, so that ranks
    can save and leave; the second one kills them. Should this process be killed, they end
    themselves.

    Returns:
        0, or the exit code of the first rank that failed (128 + signal when a signal ended it).
    """
    with tempfile.TemporaryDirectory(prefix="facetrain-") as folder:
        ranks = [
            _start(command, rank, num_processes, Path(folder)) for rank in range(num_processes)
        ]
        forward = _SignalForwarder(ranks)
        try:
            code = _wait(ranks)
        finally:
            forward.restore()
            _end(ranks)
        _print_errors(Path(folder), code, num_processes)
        return code


def report_error(message: str, *, secondary: bool = False) -> None:
    """Say a one-line error: to our launcher if there is one, else on stderr.

    Args:
        secondary: it only follows from another rank's failure, whose message is the better one.
    """
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if path is None:
        print(message, file=sys.stderr, flush=True)
    else:
        Path(path + _SECONDARY * secondary).write_text(message, encoding="utf-8")


def most_processes() -> int:
    """Local processes that can be of use here; many more would only exhaust the memory."""
    return max(8, 4 * (os.cpu_count() or 1))


def _start(
    command: Sequence[str], rank: int, num_processes: int, folder: Path
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        INIT_METHOD_VARIABLE: f"file://{folder}/meet",
        _ERROR_FILE_VARIABLE: str(folder / f"error-{rank}"),
    }
    # All ranks are on this machine: its host name need not resolve.
    if sys.platform.startswith("linux"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Ranks share the cores; unset, each would start a thread per core.
    threads = max(1, (os.cpu_count() or 1) // num_processes)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    # A session of its own, so that Ctrl-C reaches a rank only through this process, once.
    return subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=_follower(os.getpid())
    )


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


class _SignalForwarder:
    """Passes the first Ctrl-C or SIGTERM on to the ranks, and kills them at the second."""

    def __init__(self, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
        self._ranks = ranks
        self._asked = False
        self._previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL if self._asked else number)
        self._asked = True

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks, or for the first that fails; the run's exit code."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for code in codes:
            if code not in (None, 0):
                assert code is not None
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, and leave no process behind."""
    # Ranks with the same bad input are about to say so themselves.
    deadline = time.monotonic() + _GRACE_S
    asked = False
    while any(rank.poll() is None for rank in ranks):
        left_s = deadline - time.monotonic()
        if left_s < _GRACE_S - 1.0 and not asked:
            asked = True
            for rank in ranks:
                if rank.poll() is None:
                    rank.terminate()
        if left_s < 0:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
        time.sleep(_POLL_S)


def _print_errors(folder: Path, code: int, num_processes: int) -> None:
    """Each distinct message once; what only follows from other failures stays unsaid."""
    files = sorted(folder.glob("error-*"))
    first = [path for path in files if path.suffix != _SECONDARY]
    messages = [path.read_text(encoding="utf-8") for path in first]
    if not messages and code > 128 and code != 128 + signal.SIGINT:
        name = signal.Signals(code - 128).name
        messages = [
            f"error: one of {num_processes} processes was ended by {name}, so the others were "
            "too; go on from the last checkpoint with --resume"
        ]
    if not messages:
        messages = [path.read_text(encoding="utf-8") for path in files]
    for message in dict.fromkeys(messages):
        print(message, file=sys.stderr)
