"""What a run keeps: metrics that continue across a resume, and what was skipped."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from facetrain.errors import bad_input_message
from facetrain.run_log import RunLog, read_metrics


def test_metrics_after_the_resumed_step_are_dropped(tmp_path: Path) -> None:
    with RunLog(tmp_path, visible=False) as log:
        for step in (1, 2, 3, 4):
            log.metrics(step, {"loss": 10.0 - step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # a kill in the middle of a line
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4]
    with (tmp_path / "skipped.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step}) + "\n" for step in (0, 2, 3))
    with RunLog(tmp_path, visible=False, start_step=2) as log:
        log.metrics(3, {"loss": 6.5})
    assert json.loads((tmp_path / "skipped.jsonl").read_text()) == {"step": 2}
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 9.0},
        {"step": 2, "loss": 8.0},
        {"step": 3, "loss": 6.5},
    ]


def test_skipped_things_are_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunLog(tmp_path) as log:
        log.skipped(7, "2 images skipped", ["[a].jpg: cut", "b.jpg: cut"])
    assert "step 7: 2 images skipped" in capsys.readouterr().out
    record = json.loads((tmp_path / "skipped.jsonl").read_text())
    assert record["files"] == ["[a].jpg: cut", "b.jpg: cut"]


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(None, visible=False) as log, log.progress("training", 3) as progress:
        log.say("hello")
        log.metrics(1, {"loss": 1.0})
        progress.update(1, "note")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_progress_off_a_terminal_is_a_line_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("facetrain.run_log.time.monotonic", lambda: now[0])
    with RunLog(tmp_path) as log, log.progress("training", 100) as progress:
        for step in range(100):
            now[0] += 0.3
            progress.update(step + 1, "loss 1.0")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["training 34/100 loss 1.0", "training 68/100 loss 1.0"]


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("method", ["write", "flush"])
def test_a_board_on_a_full_disk_is_named_without_a_traceback(
    method: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(f"tensorboard.summary.writer.record_writer.RecordWriter.{method}", _full)
    before = threading.excepthook

    def run() -> None:
        with RunLog(tmp_path, visible=False) as log:
            # The thread that fails may do so after it was waited for.
            for thread in threading.enumerate():
                if type(thread).__module__.startswith("tensorboard."):
                    thread.join(10)
            log.metrics(1, {"loss": 1.0})

    with pytest.raises(OSError, match="No space left") as raised:
        run()
    assert bad_input_message(raised.value) == (
        f"{tmp_path / 'tensorboard'}: No space left on device; free space or choose another "
        "folder with --out"
    )
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(threading, "excepthook", before)


def test_metrics_on_a_full_disk_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunLog(tmp_path, visible=False) as log:
        monkeypatch.setattr("facetrain.run_log.print", _full, raising=False)
        with pytest.raises(OSError, match="No space left") as raised:
            log.metrics(1, {"loss": 1.0})
    assert raised.value.filename == str(tmp_path / "metrics.jsonl")
