"""What a run shows and keeps: progress bar, metrics.jsonl, skipped.jsonl and TensorBoard.

Only rank 0 has a `RunLog` that writes; the others get a silent one.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"
SKIPPED_FILE = "skipped.jsonl"
BOARD_FOLDER = "tensorboard"
_PLAIN_LINE_EVERY_S = 10.0


class RunLog(contextlib.AbstractContextManager["RunLog"]):
    """Writes to `folder`, and to the terminal when `visible`.

    Args:
        folder: run folder; None = write nothing.
        start_step: metrics of later steps, left by a run that was cut off, are dropped.
    """

    def __init__(self, folder: Path | None, *, visible: bool = True, start_step: int = 0) -> None:
        self.console = Console(quiet=not visible, highlight=False, soft_wrap=True)
        self._metrics: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._folder = folder
        self._thread_hook = threading.excepthook
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS_FILE, SKIPPED_FILE):
            _drop_after(folder / name, start_step)
        self._metrics = (folder / METRICS_FILE).open("a", encoding="utf-8")
        try:
            self._board = self._open_board(folder / BOARD_FOLDER, start_step)
        except OSError:
            self._metrics.close()
            raise

    def _open_board(self, folder: Path, start_step: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        # Its thread hands an error to the next call here, which names it; Python would print it.
        threading.excepthook = _quiet_board_thread(self._thread_hook)
        with _naming(folder):
            return SummaryWriter(folder, purge_step=start_step + 1)

    def say(self, text: str) -> None:
        """A line to the user."""
        self.console.print(text, markup=False)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the values of one step."""
        if self._metrics is not None:
            with _naming(Path(self._metrics.name)):
                print(json.dumps({"step": step, **values}), file=self._metrics, flush=True)
        if self._board is not None and self._folder is not None:
            with _naming(self._folder / BOARD_FOLDER):
                for name, value in values.items():
                    self._board.add_scalar(name, value, step)

    def skipped(self, step: int, what: str, files: list[str]) -> None:
        """Keep what was left out at a step, and say so."""
        self.say(f"step {step}: {what}")
        if self._folder is not None:
            path = self._folder / SKIPPED_FILE
            with _naming(path), path.open("a", encoding="utf-8") as file:
                print(json.dumps({"step": step, "what": what, "files": files}), file=file)

    @contextlib.contextmanager
    def progress(self, title: str, total: int, done: int = 0) -> Iterator[Progress]:
        """A bar on a terminal; elsewhere a line every ten seconds."""
        bar = Progress(self.console, title, total, done)
        with bar:
            yield bar

    def __exit__(self, *exception: object) -> None:
        try:
            if self._metrics is not None:
                with _naming(Path(self._metrics.name)):
                    self._metrics.close()
        finally:
            if self._board is not None and self._folder is not None:
                with _naming(self._folder / BOARD_FOLDER):
                    self._board.close()
                threading.excepthook = self._thread_hook


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Progress of one piece of long work."""

    def __init__(self, console: Console, title: str, total: int, done: int) -> None:
        from rich import progress

        self._console = console
        self._title = title
        self._total = total
        self._done = done
        self._printed_at = time.monotonic()
        self._bar: progress.Progress | None = None
        if console.is_terminal and not console.quiet:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """So many of the total are done; `note` stands beside the bar."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
        elif time.monotonic() - self._printed_at > _PLAIN_LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self._console.print(f"{self._title} {done}/{self._total} {note}", markup=False)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Records of a run's metrics.jsonl."""
    return _read_records(folder / METRICS_FILE)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name `path` in an error of the system that names no file: one of writing to an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _quiet_board_thread(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], None]:
    """`hook` for all threads' errors but the system's in a thread of TensorBoard."""

    def quiet(args: threading.ExceptHookArgs) -> None:
        of_board = type(args.thread).__module__.startswith("tensorboard.")
        if not (of_board and isinstance(args.exc_value, OSError)):
            hook(args)

    return quiet


def _drop_after(path: Path, step: int) -> None:
    """Keep the records of steps 1 to `step`; the old file stays until the new one is whole."""
    if path.is_file():
        partial = path.with_name(f".{path.name}.partial")
        kept = [record for record in _read_records(path) if 0 < record["step"] <= step]
        partial.write_text("".join(f"{json.dumps(record)}\n" for record in kept), encoding="utf-8")
        partial.replace(path)


def _read_records(path: Path) -> list[dict[str, Any]]:
    """Records of a JSON-lines file, without a last line cut off by a kill."""
    records = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                records.append(json.loads(line))
    return records
