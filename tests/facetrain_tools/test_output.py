"""Where commands leave their pages."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain_tools.output import output_folder, write_report


def test_a_folder_that_nothing_came_into_goes_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at_end: list[tuple[Callable[[Path], None], Path]] = []
    monkeypatch.setattr(atexit, "register", lambda do, folder: at_end.append((do, folder)))
    failed, written = output_folder("eval-x", None), output_folder("eval-x", None)
    write_report(written, "x", [], summary="", flags={}, results={})
    for do, folder in at_end:
        do(folder)
    assert (failed.exists(), written.exists()) == (False, True)
