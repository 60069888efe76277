"""Names that terminals, pages or encodings could stumble over, from one end to the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain_tools import data

from .conftest import FaceSet, people


@pytest.fixture
def strange(write_set: Callable[..., FaceSet]) -> Path:
    """Two copies of a picture by a name that is no UTF-8, and a broken file by one with codes."""
    root = write_set("set", people(2)).root
    name = root / os.fsdecode(b"\xff\x1b[31m\n<script>")
    (root / "p00").rename(name)
    (name / os.fsdecode(b"\xfe.png")).write_bytes((name / "00.png").read_bytes())
    (name / "broken\n\x1b[0m.png").write_bytes(b"broken")
    return root


@pytest.mark.parametrize("command", ["inspect", "dedupe"])
def test_strange_names_are_shown_and_can_be_given_back(
    command: str, strange: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert data.main([command, str(strange), "--out", str(out)]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    assert "\x1b" not in said.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "\\udcff" in page
    if command == "dedupe":
        selected = tmp_path / "selected"
        without = str(out / "duplicates.csv")
        flags = ["--without", without, "--to", "folder"]
        assert data.main(["select", str(strange), str(selected), *flags]) == 0
        (name,) = {folder.name for folder in selected.iterdir()} - {"p01"}
        assert os.fsencode(name) == b"\xff\x1b[31m\n<script>"
