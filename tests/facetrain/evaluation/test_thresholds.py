from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import ScoreReport
from facetrain.evaluation.thresholds import Thresholds

# Ten impostors 0.0 .. 0.9; at FAR 0.2 the two above 0.75 are accepted, with genuine 0.95 and 0.78.
REPORT = ScoreReport.of(
    np.array([0.95, 0.78, 0.5]), np.arange(10) / 10, far_targets=(0.2, 0.1, 1e-3)
)
FACTS = {"model": "m.pt", "preprocessing": "rgb", "flip": "no"}


def test_file_keeps_every_figure(tmp_path: Path) -> None:
    thresholds = Thresholds.of(REPORT, FACTS)
    thresholds.save(tmp_path / "t.json")
    assert Thresholds.load(tmp_path / "t.json") == thresholds
    content = json.loads((tmp_path / "t.json").read_text())
    # FAR 1e-3 cannot be measured with ten impostors, so it has no threshold.
    assert [entry["far_target"] for entry in content["thresholds"]] == [0.1, 0.2]
    entry = content["thresholds"][1]
    assert (entry["cosine"], entry["squared_l2"]) == (0.78, pytest.approx(0.44))
    assert (entry["far"], entry["tar"]) == (0.2, pytest.approx(2 / 3))


def test_threshold_is_found_by_its_far() -> None:
    thresholds = Thresholds.of(REPORT, FACTS)
    assert thresholds.cosine(0.2) == 0.78
    with pytest.raises(FacetrainError, match=r"no threshold for FAR 0\.001; .* 0\.1, 0\.2"):
        thresholds.cosine(1e-3)


def test_applied_to_another_set_it_accepts_what_is_at_or_above() -> None:
    thresholds = Thresholds.of(REPORT, FACTS)
    applied = thresholds.apply(np.array([0.78, 0.77]), np.array([0.1, 0.78, 0.9, 0.0]))
    assert [(a.far_target, a.cosine, a.tar, a.far) for a in applied][1] == (0.2, 0.78, 0.5, 0.5)


def test_nothing_measurable_is_refused() -> None:
    report = ScoreReport.of(np.ones(2), np.zeros(10), far_targets=(1e-3,))
    with pytest.raises(FacetrainError, match="no target FAR can be measured with 10"):
        Thresholds.of(report, FACTS)


def test_embeddings_made_in_another_way_are_refused() -> None:
    thresholds = Thresholds.of(REPORT, FACTS)
    thresholds.check_usable_with({"features": "f.npy"}, Path("t.json"))
    thresholds.check_usable_with({**FACTS, "model": "other.pt"}, Path("t.json"))
    with pytest.raises(FacetrainError, match=r"t\.json: measured with flip 'no', used with 'yes'"):
        thresholds.check_usable_with({**FACTS, "flip": "yes"}, Path("t.json"))


def good() -> dict[str, Any]:
    entry = {"far_target": 0.1, "cosine": 0.3, "squared_l2": 1.4, "far": 0.1, "tar": 0.9}
    return {
        "format": "facetrain-thresholds",
        "version": 1,
        "num_genuine": 3,
        "num_impostor": 10,
        "measured_with": {},
        "thresholds": [entry],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"version": 2},
        {"thresholds": []},
        {"thresholds": [{"far_target": 0.1}]},
        {"thresholds": [{"far_target": 2, "cosine": 0.3, "far": 0.1, "tar": 0.9}]},
        {"thresholds": [{"far_target": 0.1, "cosine": "x", "far": 0.1, "tar": 0.9}]},
        {"thresholds": [{"far_target": 0.1, "cosine": 10**400, "far": 0.1, "tar": 0.9}]},
        {"num_impostor": float("inf")},
        {"thresholds": 3},
        {"measured_with": []},
        {"num_genuine": None},
    ],
)
def test_other_content_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(good()))
    assert Thresholds.load(path).cosine(0.1) == 0.3
    path.write_text(json.dumps({**good(), **change}))
    with pytest.raises(FacetrainError, match=r"t\.json: not a facetrain-thresholds file") as error:
        Thresholds.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[1", "[]", "3", "\x00"])
def test_damaged_and_absent_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(FacetrainError, match=r"t\.json"):
        Thresholds.load(tmp_path / "t.json")
    with pytest.raises(FacetrainError, match=r"absent\.json: no such file"):
        Thresholds.load(tmp_path / "absent.json")


def test_thresholds_that_would_accept_nobody_are_refused() -> None:
    # A collapsed model: every pair has the same score.
    report = ScoreReport.of(np.ones(50), np.ones(5000), (1e-2, 1e-3))
    with pytest.raises(FacetrainError, match="none would accept any genuine pair"):
        Thresholds.of(report, {})
