"""`facetrain data inspect`: counts, broken files, gaps and the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_tools import data
from facetrain_tools.data.inspect import per_identity_table

from .conftest import FaceSet, people


def test_counts_broken_files_and_sizes(
    write_set: Callable[..., FaceSet],
    read_list: Callable[[Path], list[dict[str, str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_set("set", {**people(3), "rich": [9] * 12, "single": [8]}).root
    (root / "p01" / "02.png").write_bytes(b"broken")
    cv2.imwrite(str(root / "p00" / "00.png"), np.zeros((50, 40), np.uint8))
    out = tmp_path / "out"
    assert data.main(["inspect", str(root), "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["num_images"] == 25
    assert results["num_identities"] == 5
    assert results["images_per_identity"] == {"min": 1, "median": 4, "mean": 5, "max": 12}
    assert results["num_broken"] == 1
    assert results["sizes"] == {"112x112": 23, "40x50": 1}
    assert results["kinds"] == {"png, colour": 23, "png, grey": 1}
    (broken,) = read_list(out / "broken.csv")
    assert broken["identity"] == "p01"
    assert "not a readable image" in broken["reason"]
    text = capsys.readouterr().out
    for expected in ("1 to 12, median 4, mean 5.0", "10 to 19", "02.png", "40x50"):
        assert expected in text
    assert (out / "report.html").read_text().count("data:image/jpeg") == 3 * 4 + 8 + 1


def test_label_gaps_are_named(
    write_set: Callable[..., FaceSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set("set", people(2))
    table = tmp_path / "faces.csv"
    table.write_text("path,label\nset/p00/00.png,0\nset/p01/00.png,3\n")
    assert data.main(["inspect", str(table), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert f"{table} (list)" in text
    assert "2 class ids without images (1, 2)" in text
    assert "numbers the classes anew" in (tmp_path / "out" / "report.html").read_text()


def test_per_identity_table_counts_each_image_once() -> None:
    counts = np.array([1, 1, 2, 4, 4, 999, 1000, 5000])
    rows = per_identity_table(counts).rows
    assert [row[:3] for row in rows] == [
        ("1", "2", "2"),
        ("2", "1", "2"),
        ("3 to 4", "2", "8"),
        ("500 to 999", "1", "999"),
        ("1,000 or more", "2", "6,000"),
    ]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["inspect", str(tmp_path / "nowhere")]) == EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "nowhere" in line
