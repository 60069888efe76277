"""The recipe for one's own faces: who is held out, and whole runs in the slow tests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from facetrain.errors import ConfigError, FacetrainError
from facetrain_recipes.faces import held_out_people
from facetrain_tools.cli import main
from tests.facetrain_recipes.conftest import MiniLfw


def _faces(*counts: int) -> SimpleNamespace:
    labels = np.repeat(np.arange(len(counts)), counts)
    return SimpleNamespace(labels=labels, identities=[str(i) for i in range(len(counts))])


def test_people_held_out_are_a_seeded_share_with_two_images_each() -> None:
    faces = _faces(*[1, 2, 3, 4] * 25)
    people = held_out_people(faces, 0.2, seed=0)
    assert len(people) == 20
    assert (np.diff(people) > 0).all()
    assert (np.bincount(faces.labels)[people] >= 2).all()
    np.testing.assert_array_equal(people, held_out_people(faces, 0.2, seed=0))
    assert set(people) != set(held_out_people(faces, 0.2, seed=1))


def test_no_more_people_are_held_out_than_can_be_compared() -> None:
    assert len(held_out_people(_faces(*[1000] * 100), 0.5, seed=0)) == 5
    assert len(held_out_people(_faces(3, 3, 3, 3), 0.01, seed=0)) == 2


def test_too_few_people_are_refused() -> None:
    with pytest.raises(FacetrainError, match="3 people, 3 of them with two images: too few"):
        held_out_people(_faces(2, 2, 2), 0.05, seed=0)
    with pytest.raises(FacetrainError, match="4 people, 1 of them with two images: too few"):
        held_out_people(_faces(1, 1, 2, 1), 0.05, seed=0)
    with pytest.raises(ConfigError, match="--held-out 1: must be above 0 and below 1"):
        held_out_people(_faces(2, 2, 2, 2), 1.0, seed=0)


_QUICK = (
    *("--backbone", "mobilefacenet_tiny", "--embedding-size", "16", "--num-workers", "0"),
    *("--global-batch-size", "6", "--epochs", "1", "--transforms", "flip", "crop", "jpeg"),
)


def _run(mini: MiniLfw, out: Path, *flags: str) -> dict:
    assert main(["train", "faces", "--out", str(out), *flags, *_QUICK]) == 0
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_trains_on_records_with_people_held_out(mini_lfw: MiniLfw, tmp_path: Path) -> None:
    rec = tmp_path / "faces_rec"
    assert main(["data", "convert", str(mini_lfw.data), str(rec), "--to", "rec"]) == 0
    balanced = ("--order", "balanced", "--images-in-a-row", "2")
    flags = ("--data", str(rec), "--held-out", "0.3", *balanced)
    results = _run(mini_lfw, tmp_path / "run", *flags)
    assert results["title"] == "faces: 2 people held out"
    assert (results["num_images"], results["num_classes"]) == (20, 5)
    assert results["systems"]["trained network"]["num_images"] == 8


@pytest.mark.slow
def test_trains_on_a_folder_and_evaluates_on_pairs(mini_lfw: MiniLfw, tmp_path: Path) -> None:
    pairs = mini_lfw.protocols / "lfw_pairsDevTest.txt"
    images = ("--pairs", str(pairs), "--pair-images", str(mini_lfw.data))
    results = _run(mini_lfw, tmp_path / "run", "--data", str(mini_lfw.data), *images)
    assert results["title"] == "faces: lfw_pairsDevTest.txt"
    assert results["systems"]["trained network"]["num_genuine"] == 12
