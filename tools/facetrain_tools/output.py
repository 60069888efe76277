"""Where a command leaves its page and its figures: report.html and results.json in one folder."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from facetrain.command import command_line
from facetrain.errors import FacetrainError
from facetrain.report import Section, Text, write_atomically, write_page
from facetrain.run_folder import choose_run_folder

REPORT_FILE = "report.html"
RESULTS_FILE = "results.json"


def output_folder(name: str, out: Path | None, *data: Path) -> Path:
    """`out`, or a new folder runs/NAME, runs/NAME-2, ...; it exists and can be written.

    Where nothing has been written into it when the process ends, it is removed again.

    Args:
        name: of the command.
        out: as the user gave it.
        data: the sets that are read, where `out` must not become a part of them.

    Raises:
        FacetrainError: it cannot be written, holds a training run, or lies inside the data.
    """
    if out is not None:
        refuse_inside(out, *data)
    folder = choose_run_folder(name, out, resume=False).path
    atexit.register(_remove_if_empty, folder.resolve())
    return folder


def refuse_inside(out: Path, *data: Path) -> None:
    """A new folder inside a data set would be taken for one of its identities.

    Raises:
        FacetrainError: `out` would be one.
    """
    # Path.resolve would raise where links go in circles.
    real = Path(os.path.realpath(out))
    for folder in data:
        if folder.is_dir() and Path(os.path.realpath(folder)) in real.parents:
            raise FacetrainError(
                f"{out}: lies inside the data, {folder}, and would be taken for a part of it; "
                "choose a folder elsewhere"
            )


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def write_report(
    folder: Path,
    title: str,
    sections: Sequence[Section],
    *,
    summary: str,
    flags: Any,
    results: Mapping[str, Any],
) -> None:
    """Writes report.html and results.json, and says where the page is; both name the command.

    Args:
        flags: the command's flags, a dataclass; they stand in results.json under "flags".
        results: the figures, plain values only.
    """
    command = command_line()
    told = [*sections, Section("Command", [Text(command)])]
    write_page(folder / REPORT_FILE, title, told, summary=summary)
    content = {"command": command, "flags": _plain(flags), **results}
    write_atomically(folder / RESULTS_FILE, json.dumps(content, indent=1) + "\n")
    print(f"\nreport  {(folder / REPORT_FILE).resolve()}")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
