"""`facetrain eval all-pairs` and `calibrate`, and what verification does with the thresholds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain.evaluation.thresholds import Thresholds
from facetrain_tools import eval as eval_command


def results(folder: str) -> dict:
    return json.loads((Path("runs") / folder / "results.json").read_text())


@pytest.mark.usefixtures("real_plots")
def test_all_pairs_of_a_folder(
    model: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["all-pairs", "--data", str(faces), "--model", str(model), "--far", "0.1", "1e-3"]
    assert eval_command.main(flags) == 0
    text = capsys.readouterr().out
    assert "30 genuine, 160 impostor: all there are" in text
    assert "n/a: cannot be measured with 160 impostor pairs" in text
    figures = results("eval-all-pairs")
    assert (figures["num_genuine"], figures["num_impostor"]) == (30, 160)
    assert (figures["num_images"], figures["num_identities"]) == (20, 5)
    assert figures["tar_at_far"][1]["tar"] is None
    page = Path("runs/eval-all-pairs/report.html").read_text()
    assert page.count("<svg") == 2  # nothing is missed: no DET
    assert "<h2>Command</h2>" in page
    assert page.count('class="pair"') == 24
    assert re.search(r"(Ann|Bob|Cyd|Dan|Eve)/\1_000\d\.jpg", page)


def test_features_that_tell_identities_need_no_data(
    features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_command.main(["all-pairs", "--features", str(features)]) == 0
    assert results("eval-all-pairs")["num_genuine"] == 30 * 6
    assert "p0/0.jpg" in Path("runs/eval-all-pairs/report.html").read_text()
    np.save("rows.npy", np.load(features)["embeddings"])
    assert eval_command.main(["all-pairs", "--features", "rows.npy"]) == EXIT_BAD_INPUT
    assert "tell no identities" in capsys.readouterr().err
    assert eval_command.main(["all-pairs"]) == EXIT_BAD_INPUT
    assert "give --data with --model or --features" in capsys.readouterr().err


def test_thresholds_are_written_read_and_applied(
    model: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", str(faces), "--model", str(model)]
    assert eval_command.main(["calibrate", *given, "--far", "0.1", "1e-6"]) == 0
    path = Path("runs/eval-calibrate/thresholds.json")
    assert str(path.resolve()) in capsys.readouterr().out
    thresholds = Thresholds.load(path)
    assert [point.far_target for point in thresholds.points] == [0.1]
    assert thresholds.measured_with["flip"] == "no"
    lines = [
        f"{a}/{a}_0001.jpg,{b}/{b}_0002.jpg,{int(a == b)}"
        for a in ("Ann", "Bob", "Cyd")
        for b in ("Ann", "Bob", "Cyd")
    ]
    Path("pairs.csv").write_text("\n".join(lines))
    verify = ["verification", *given, "--pairs", "pairs.csv", "--folds", "3"]
    assert eval_command.main([*verify, "--thresholds", str(path)]) == 0
    assert f"thresholds of {path}, {thresholds.origin()}, applied" in capsys.readouterr().out
    (applied,) = results("eval-verification")["applied_thresholds"]
    assert applied["cosine"] == thresholds.cosine(0.1)
    assert 0.0 <= applied["far"] <= 1.0
    assert eval_command.main([*verify, "--thresholds", str(path), "--flip"]) == EXIT_BAD_INPUT
    assert "measured with flip 'no'" in capsys.readouterr().err


def test_calibrate_on_pairs_to_a_file_of_choice(features: Path) -> None:
    names = np.load(features)["names"].tolist()
    people = np.load(features)["identities"].tolist()
    rows = [(a, (a + step) % 120) for a in range(0, 120, 2) for step in (1, 7)]
    lines = [f"{names[a]},{names[b]},{int(people[a] == people[b])}" for a, b in rows]
    Path("pairs.csv").write_text("\n".join(lines))
    flags = ["--features", str(features), "--pairs", "pairs.csv", "--to", "t/t.json"]
    assert eval_command.main(["calibrate", *flags, "--far", "0.1"]) == 0
    assert Thresholds.load(Path("t/t.json")).num_impostor == sum(
        people[a] != people[b] for a, b in rows
    )


def test_features_of_all_images_serve_those_with_enough_images(faces: Path) -> None:
    for image in sorted((faces / "Ann").iterdir())[1:]:
        image.unlink()
    rows = np.random.default_rng(0).normal(size=(17, 8)).astype(np.float32)
    np.save("rows.npy", rows)
    flags = ["all-pairs", "--features", "rows.npy", "--data", str(faces), "--min-images", "2"]
    assert eval_command.main(flags) == 0
    few = results("eval-all-pairs")
    np.save("rows.npy", rows[1:])  # Ann's only image comes first
    (faces / "Ann").rename("elsewhere")
    assert eval_command.main(flags) == 0
    again = results("eval-all-pairs-2")
    assert few["num_images"] == again["num_images"] == 16
    assert few["eer"] == again["eer"]


def test_nothing_measurable_is_one_line(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["calibrate", "--features", str(features), "--far", "1e-9"]
    assert eval_command.main(flags) == EXIT_BAD_INPUT
    assert "no target FAR can be measured" in capsys.readouterr().err
