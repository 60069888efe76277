"""`facetrain data clean`: each kind of planted fault in its list and on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain.backbones import build_backbone
from facetrain.errors import EXIT_BAD_INPUT
from facetrain.model_files import save_model
from facetrain.preprocessing import Preprocessing
from facetrain_tools import data

from .conftest import FaceSet, people


@pytest.fixture
def faulty(write_set: Callable[..., FaceSet]) -> FaceSet:
    layout = people(30, images=6)
    layout["p02"][1] = 9  # mislabelled
    layout["p04"][0] = 500  # a stranger
    layout["p06"] = [6] * 4 + [501] * 4  # merged
    layout["p07b"] = [7] * 5  # split
    return write_set("set", layout)


def test_every_planted_fault_is_listed_and_nothing_else(
    faulty: FaceSet,
    read_list: Callable[[Path], list[dict[str, str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["clean", str(faulty.root), "--features", str(faulty.features)]
    assert data.main([*arguments, "--search", "torch", "--out", str(out)]) == 0
    images = {
        (row["identity"], Path(row["image"]).name, row["finding"]): row["nearest_identity"]
        for row in read_list(out / "images.csv")
    }
    assert images.keys() == {("p02", "01.png", "mislabelled"), ("p04", "00.png", "outlier")}
    assert images["p02", "01.png", "mislabelled"] == "p09"
    identities = read_list(out / "identities.csv")
    assert [(r["finding"], r["first_identity"], r["second_identity"]) for r in identities] == [
        ("split", "p07", "p07b"),
        ("merged", "p06", ""),
    ]
    assert len(identities[1]["images_of_second_person"].split()) == 4
    page = (out / "report.html").read_text()
    for heading in ("Mislabelled images (1)", "Outliers (1)", "Split", "Merged"):
        assert heading in page
    assert "p02: cosine" in page
    assert "split from" in capsys.readouterr().out
    thresholds = json.loads((out / "results.json").read_text())["thresholds"]
    assert thresholds["outlier"] < thresholds["strangers"] < thresholds["same"]


def test_features_saved_by_one_call_serve_the_next(
    write_set: Callable[..., FaceSet], tmp_path: Path
) -> None:
    root = write_set("set", people(20, images=2)).root
    model = tmp_path / "model.pt"
    save_model(
        model, "mobilefacenet_tiny", build_backbone("mobilefacenet_tiny", 16), Preprocessing()
    )
    saved = tmp_path / "saved.npy"
    results = []
    for number, source in enumerate(
        (["--model", str(model), "--save-features", str(saved)], ["--features", str(saved)])
    ):
        out = tmp_path / f"out{number}"
        arguments = ["clean", str(root), "--search", "torch", "--out", str(out), *source]
        assert data.main(arguments) == 0
        results.append(json.loads((out / "results.json").read_text()))
    assert np.load(saved).shape == (40, 16)
    assert results[0]["thresholds"] == results[1]["thresholds"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--features", "{features}"), "give the thresholds yourself"),
        ((), "--model or --features"),
        (("--features", "{features}", "--search", "annoy"), "annoy"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    write_set: Callable[..., FaceSet],
    tmp_path: Path,
    more: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = write_set("set", people(5))
    flags = [flag.format(features=small.features) for flag in more]
    code = data.main(["clean", str(small.root), "--out", str(tmp_path / "out"), *flags])
    assert code == EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_thresholds_given_serve_a_small_set(
    write_set: Callable[..., FaceSet], tmp_path: Path
) -> None:
    small = write_set("set", people(5))
    given = ["--outlier", "0.3", "--alike", "0.5", "--same", "0.7", "--strangers", "0.4"]
    arguments = ["clean", str(small.root), "--features", str(small.features), *given]
    assert data.main([*arguments, "--out", str(tmp_path / "out")]) == 0
