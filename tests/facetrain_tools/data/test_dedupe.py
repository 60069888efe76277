"""`facetrain data dedupe`: exact copies without a model, near ones with features, the lists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_datasets.formats import open_faces
from facetrain_tools import data

from .conftest import FaceSet, people


@pytest.fixture
def copies(write_set: Callable[..., FaceSet]) -> FaceSet:
    """p00/01 and p02/03 are copies of p00/00; p01/03 is p01/00 mirrored and encoded anew."""
    root, features = write_set("set", people(4))
    shutil.copy(root / "p00" / "00.png", root / "p00" / "01.png")
    shutil.copy(root / "p00" / "00.png", root / "p02" / "03.png")
    image = cv2.imread(str(root / "p01" / "00.png"))
    cv2.imwrite(str(root / "p01" / "03.png"), cv2.flip(image, 1))
    rows = np.load(features)
    rows[1] = rows[11] = rows[0]
    rows[7] = rows[4] + 0.01
    np.save(features, rows)
    return FaceSet(root, features)


def test_exact_copies_need_no_model(
    copies: FaceSet,
    read_list: Callable[[Path], list[dict[str, str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert data.main(["dedupe", str(copies.root), "--out", str(out)]) == 0
    rows = read_list(out / "duplicates.csv")
    assert [(row["index"], row["finding"], row["first_identity"]) for row in rows] == [
        ("1", "exact copy", "p00"),
        ("11", "exact copy", "p00"),
    ]
    assert "give --model or --features" in capsys.readouterr().out


def test_near_copies_by_features_and_the_rest_written_by_select(
    copies: FaceSet,
    read_list: Callable[[Path], list[dict[str, str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["dedupe", str(copies.root), "--features", str(copies.features)]
    assert data.main([*arguments, "--search", "torch", "--out", str(out)]) == 0
    rows = read_list(out / "duplicates.csv")
    assert {(row["index"], row["finding"]) for row in rows} == {
        ("1", "exact copy"),
        ("11", "exact copy"),
        ("7", "near copy"),
    }
    results = json.loads((out / "results.json").read_text())
    assert results["num_groups"] == 2
    assert results["num_groups_of_several_identities"] == 1
    page = (out / "report.html").read_text()
    assert "One photograph, several identities (1)" in page
    assert "Copies within an identity (1)" in page
    kept = tmp_path / "kept"
    listed = str(out / "duplicates.csv")
    assert data.main(["select", str(copies.root), str(kept), "--without", listed]) == 0
    assert "13 of 16 images" in capsys.readouterr().out
    before, after = open_faces(copies.root), open_faces(kept)
    assert list(after.identities) == ["p00", "p01", "p02", "p03"]
    expected = sorted(before.read(row) for row in range(16) if row not in (1, 7, 11))
    assert sorted(after.read(row) for row in range(13)) == expected


def test_a_broken_image_is_named(
    copies: FaceSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copies.root / "p01" / "03.png").write_bytes(b"broken")
    arguments = ["dedupe", str(copies.root), "--features", str(copies.features)]
    code = data.main([*arguments, "--search", "torch", "--out", str(tmp_path / "out")])
    assert code == EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "03.png" in line
    assert "facetrain data inspect" in line
