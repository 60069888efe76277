"""Files that crash the process which reads them; that process comes and goes with this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from facetrain_datasets import parquet_process
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from facetrain_datasets.parquet_process import read_images, read_index

# Crashes as pyarrow may: by the file at hand, or by one before it that damaged the memory.
CRASHING = """
import json, os, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from facetrain_datasets import parquet_reader
read, seen = parquet_reader.index_answers, []
def index_answers(file):
    seen.append(file.name)
    if file.name == "crashes.parquet" or seen[:-1] == ["harms.parquet"]:
        os.abort()
    yield from read(file)
parquet_reader.index_answers = index_answers
parquet_reader.serve()
"""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[parquet_process._Reader]:
    """A reader of this test alone."""
    reader = parquet_process._Reader()
    monkeypatch.setattr(parquet_process, "_readers", {os.getpid(): reader})
    yield reader
    reader.close()


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        table = pa.table({"image": [b"one", b"two"], "label": [0, 1]})
        write_table(table, tmp_path / f"{name}.parquet", compression="gzip")
        return tmp_path / f"{name}.parquet"

    return write


def _process(reader: parquet_process._Reader) -> subprocess.Popen[bytes]:
    assert reader._process is not None
    return reader._process


def test_file_that_crashes_the_reader_is_named_and_the_next_is_read(
    written: Callable[[str], Path], reader: parquet_process._Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_process, "_SERVE", CRASHING)
    for _ in range(2):
        with pytest.raises(DatasetError) as error:
            open_faces(written("crashes"))
        assert str(error.value) == (
            f"{written('crashes')}: damaged (pyarrow crashed by SIGABRT reading it); "
            "restore the file"
        )
        assert reader._process is None
        assert len(open_faces(written("good"))) == 2
        written("good").with_name("good.parquet.index").unlink()


def test_file_is_not_blamed_for_one_before_it(
    written: Callable[[str], Path], reader: parquet_process._Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_process, "_SERVE", CRASHING)
    read_index(written("harms"))
    first = _process(reader)
    assert [labels for labels, *_ in read_index(written("good"))] == [[0, 1]]
    assert first.returncode == -signal.SIGABRT
    second = _process(reader)
    second.kill()  # as the system does that is short of memory
    assert read_images(written("good"), 0) == [b"one", b"two"]
    assert _process(reader) is not second


def test_one_process_reads_all_files(
    written: Callable[[str], Path], reader: parquet_process._Reader
) -> None:
    read_index(written("a"))
    process = _process(reader)
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet"):
        read_index(written("a").with_name("absent.parquet"))
    with pytest.raises(DatasetError, match=r"a\.parquet: no row group 7 in it; remove its index"):
        read_images(written("a"), 7)
    assert read_images(written("b"), 0) == [b"one", b"two"]
    assert _process(reader) is process


def test_interrupted_answer_is_not_taken_for_the_next(
    written: Callable[[str], Path], reader: parquet_process._Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_index(written("a"))

    def interrupted(line: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parquet_process.json, "loads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_index(written("a"))
    assert read_images(written("a"), 0) == [b"one", b"two"]


def test_modules_beside_the_user_are_not_taken_for_the_readers(
    written: Callable[[str], Path],
    tmp_path: Path,
    reader: parquet_process._Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert read_images(written("a").relative_to(tmp_path), 0) == [b"one", b"two"]


def test_reader_that_does_not_start_blames_no_file(
    written: Callable[[str], Path], reader: parquet_process._Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_process, "_SERVE", "raise SystemExit(3)")
    with pytest.raises(DatasetError, match=r"that is to read it ended with code 3 before it began"):
        read_index(written("a"))


FORKS = """
import multiprocessing, os, sys
from pathlib import Path
from facetrain_datasets import parquet_process

def read():
    assert parquet_process.read_images(Path(sys.argv[1]), 0) == [b"one", b"two"]
    print(parquet_process._reader()._process.pid, flush=True)

read()
child = multiprocessing.get_context("fork").Process(target=read)
child.start()
child.join()
read()
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and fork")
@pytest.mark.parametrize("end", [signal.SIGKILL, None], ids=["killed", "exits"])
def test_a_fork_has_its_own_and_none_outlives_its_parent(
    written: Callable[[str], Path], end: int | None
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", FORKS, str(written("a"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stdout is not None
    before, forked, after = (int(run.stdout.readline()) for _ in range(3))
    assert before == after != forked
    assert _runs(before)
    if end is not None:
        run.send_signal(end)
    _, err = run.communicate(timeout=20)
    assert err == b""
    deadline = time.monotonic() + 10
    while (_runs(before) or _runs(forked)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(before)
    assert not _runs(forked)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
