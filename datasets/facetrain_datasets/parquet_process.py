"""Parquet files read by another process, which a damaged file may crash: `read_index(file)`.

One process for all files, started when first needed and ended with this one. It is no
`multiprocessing` worker, since that would run a user's script again, and is started anew in a
process that forked, such as a loader's worker.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from facetrain_datasets.errors import DatasetError

# Not with the working directory first, which a program given by -c would look in for its modules.
_SERVE = (
    "import sys; sys.path[:] = filter(None, sys.path); import json; "
    "sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from facetrain_datasets.parquet_reader import serve; serve()"
)

Answer = tuple[dict[str, Any], list[bytes]]
GroupIndex = tuple[list[int | str], np.ndarray, np.ndarray]


def read_index(file: Path) -> list[GroupIndex]:
    """Of each row group the labels, and the offsets and lengths that the index is to have.

    Raises:
        DatasetError: the file cannot be used, or pyarrow is absent.
        OSError: the file cannot be read.
    """
    return [
        (header["labels"], *(np.frombuffer(content, np.int64) for content in contents))
        for header, contents in _reader().ask(file, "index")
    ]


def read_images(file: Path, group: int) -> list[bytes]:
    """The images of a row group; raises as `read_index` does."""
    return _reader().ask(file, "images", group)[0][1]


class _Reader:
    """A process that runs `parquet_reader`."""

    def __init__(self) -> None:
        self._lock = Lock()  # threads take turns
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.close)

    def ask(self, file: Path, kind: str, *group: int) -> list[Answer]:
        """The answers, by row group.

        Raises:
            DatasetError: what the process says of the file, or that it crashed.
            OSError: the file cannot be read.
        """
        require_pyarrow(file)
        request = [kind, str(file.absolute()), *group]
        with self._lock:
            while True:
                is_fresh = self._process is None
                process = self._process or self._start(file)
                try:
                    *answers, (end, _) = self._exchange(process, request)
                    break
                except (EOFError, BrokenPipeError):
                    # One that has read other files may have been crashed by one of those.
                    if is_fresh:
                        raise DatasetError(
                            f"{file}: damaged (pyarrow {_fate(process)} reading it); "
                            "restore the file"
                        ) from None
        if "errno" in end:
            raise OSError(end["errno"], os.strerror(end["errno"]), str(file))
        if "error" in end:
            raise DatasetError(f"{file}: {end['error']}")
        return answers

    def _start(self, file: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a crash prints there what the error says
        )
        try:
            self._exchange(process, [str(entry) for entry in sys.path])
        except (EOFError, BrokenPipeError):
            raise DatasetError(
                f"{file}: the process that is to read it {_fate(process)} before it began; see "
                f"what says {sys.executable} -c 'import pyarrow.parquet'"
            ) from None
        self._process = process
        return process

    def _exchange(self, process: subprocess.Popen[bytes], request: list[Any]) -> list[Answer]:
        """Sends a line and takes the answers; the last is `end`.

        Raises:
            EOFError, BrokenPipeError: the process has ended.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        answers: list[Answer] = []
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            while not answers or "end" not in answers[-1][0]:
                line = process.stdout.readline()
                if not line.endswith(b"\n"):
                    raise EOFError
                header = json.loads(line)
                contents = [process.stdout.read(size) for size in header.get("sizes", [])]
                if [len(content) for content in contents] != header.get("sizes", []):
                    raise EOFError
                answers.append((header, contents))
        except BaseException:  # Ctrl-C too: what it has not said yet would answer the next request
            self._process = None
            _end(process)
            raise
        return answers

    def close(self) -> None:
        """Ends the process, unless it is that of the parent; the next request starts another."""
        if self._owner == os.getpid():
            with self._lock:
                if self._process is not None:
                    _end(self._process)
                self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # changes nothing where it has ended by itself
    with contextlib.suppress(BrokenPipeError), process:
        pass


def _fate(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"crashed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def require_pyarrow(file: Path) -> None:
    """Says how to install it.

    Raises:
        DatasetError: it is not installed.
    """
    if find_spec("pyarrow") is None:
        raise DatasetError(
            f"{file}: Parquet needs pyarrow, which is not installed: "
            f"pip install 'facetrain[parquet]'"
        )


_readers: dict[int, _Reader] = {}


def _reader() -> _Reader:
    """That of this process: one from before a fork belongs to the parent, as does its lock."""
    pid = os.getpid()
    return _readers.get(pid) or _readers.setdefault(pid, _Reader())
