"""`facetrain data overlap`: people of both sets, by embeddings and not by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_datasets.formats import open_faces
from facetrain_tools import data

from .conftest import FaceSet, people


@pytest.fixture
def sets(write_set: Callable[..., FaceSet]) -> tuple[FaceSet, FaceSet]:
    """The second set has persons 3 and 7 of the first under other names, and a p00 of its own."""
    second = {"p00": [100] * 3, "x": [3] * 3, "y": [7] * 2, "z": [101]}
    return write_set("first", people(24)), write_set("second", second, seed=1)


def arguments(first: FaceSet, second: FaceSet, out: Path) -> list[str]:
    features = ["--features", str(first.features), "--second-features", str(second.features)]
    names = [str(first.root), str(second.root)]
    return ["overlap", *names, *features, "--search", "torch", "--out", str(out)]


def test_shared_people_are_listed_and_left_out_by_select(
    sets: tuple[FaceSet, FaceSet],
    read_list: Callable[[Path], list[dict[str, str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert data.main(arguments(*sets, out)) == 0
    rows = read_list(out / "overlap.csv")
    assert {(row["identity"], row["second_identity"]) for row in rows} == {
        ("p03", "x"),
        ("p07", "y"),
    }
    assert {row["second_num_images"] for row in rows} == {"2", "3"}
    assert json.loads((out / "results.json").read_text())["num_pairs"] == 2
    assert "three standard deviations" in capsys.readouterr().out
    assert (out / "report.html").read_text().count("data:image/jpeg") == 4 + 3 + 4 + 2
    listed = str(out / "overlap.csv")
    kept = tmp_path / "kept"
    assert data.main(["select", str(sets[0].root), str(kept), "--without", listed]) == 0
    assert len(open_faces(kept).identities) == 22


def test_threshold_given_serves_where_no_set_is_large(
    sets: tuple[FaceSet, FaceSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (sets[1], sets[1])
    assert data.main(arguments(*small, tmp_path / "a")) == EXIT_BAD_INPUT
    assert "give --threshold" in capsys.readouterr().err
    assert data.main([*arguments(*small, tmp_path / "b"), "--threshold", "0.9"]) == 0
    assert json.loads((tmp_path / "b" / "results.json").read_text())["num_pairs"] == 4


def test_features_of_one_set_only_are_refused(
    sets: tuple[FaceSet, FaceSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(one.root) for one in sets]
    code = data.main(["overlap", *names, "--features", str(sets[0].features)])
    assert code == EXIT_BAD_INPUT
    assert "--second-features together" in capsys.readouterr().err
