"""No command makes a folder of its own inside the set it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_tools import data

from .conftest import FaceSet, people


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "SET", "--out", "OUT"],
        ["dedupe", "SET", "--out", "OUT"],
        ["clean", "SET", "--features", "f.npy", "--out", "OUT"],
        ["overlap", "SET", "SET", "--model", "m.onnx", "--out", "OUT"],
        ["convert", "SET", "OUT", "--to", "rec"],
        ["select", "SET", "OUT", "--without", "none.csv"],
        ["prepare", "SET", "OUT", "--detector", "d.onnx"],
    ],
    ids=lambda command: command[0],
)
def test_output_inside_the_data_is_refused(
    command: list[str],
    write_set: Callable[..., FaceSet],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_set("set", people(2)).root
    link = tmp_path / "link"
    link.symlink_to(root)
    before = sorted(root.rglob("*"))
    paths = {"SET": str(root), "OUT": str(link / "out" / "new")}
    assert data.main([paths.get(word, word) for word in command]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert "new: lies inside the data" in error
    assert error.count("\n") == 1
    assert sorted(root.rglob("*")) == before
