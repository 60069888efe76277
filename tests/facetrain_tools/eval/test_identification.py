"""`facetrain eval identification` on data sets and feature files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_datasets.protocols.feature_files import write_megaface_file
from facetrain_tools import eval as eval_command


def run(*flags: str) -> dict:
    assert eval_command.main(["identification", *flags]) == 0
    newest = max(Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
    return json.loads((newest / "results.json").read_text())


@pytest.fixture
def split(features: Path) -> tuple[str, str]:
    """gallery.npz: one image of each of 20 people; probes.npz: two images of each of 30."""
    data = np.load(features)
    chosen = {
        "gallery": [row for row in range(80) if row % 4 == 0],
        "probes": [row for row in range(120) if row % 4 in (1, 2)],
    }
    for name, rows in chosen.items():
        np.savez(
            f"{name}.npz",
            embeddings=data["embeddings"][rows],
            identities=data["identities"][rows],
        )
    return "gallery.npz", "probes.npz"


@pytest.mark.usefixtures("real_plots")
def test_open_set_on_features_equals_brute_force(split: tuple[str, str]) -> None:
    gallery, probes = split
    figures = run("--gallery", gallery, "--probes", probes, "--far", "0.1")
    sets = [np.load(path) for path in split]
    units = [
        s["embeddings"].astype(float)
        / np.linalg.norm(s["embeddings"].astype(float), axis=1, keepdims=True)
        for s in sets
    ]
    scores = (units[1] @ units[0].T).astype(np.float32)
    same = sets[1]["identities"][:, None] == sets[0]["identities"][None]
    mated = same.any(axis=1)
    hits = same[np.arange(60), scores.argmax(axis=1)]
    assert figures["rank"]["1"] == pytest.approx(hits[mated].mean())
    assert (figures["num_mated"], figures["num_unmated"]) == (40, 20)
    # FAR 0.1 lets 2 of 20 unmated probes in: the threshold is above the third best.
    bound = np.sort(scores[~mated].max(axis=1))[-3]
    expected = (hits & (scores.max(axis=1) > bound))[mated].mean()
    assert figures["dir_at_far"][0]["tar"] == pytest.approx(expected)
    assert Path("runs/eval-identification/report.html").read_text().count("<svg") == 3


def test_every_engine_finds_the_same_here(
    split: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    found = {}
    for search in ("torch", "faiss", "ivf", "hnsw"):
        figures = run("--gallery", split[0], "--probes", split[1], "--search", search)
        found[search] = {name: figures[name] for name in ("rank", "dir_at_far", "num_mated")}
        text = capsys.readouterr().out
        assert ("true nearest entry" in text) == (search in ("ivf", "hnsw"))
    assert all(figures == found["torch"] for figures in found.values())


def test_distractors_from_files_lower_the_rates(split: tuple[str, str]) -> None:
    rng = np.random.default_rng(3)
    Path("shards").mkdir()
    for part in range(3):
        np.save(f"shards/{part}.npy", rng.normal(size=(400, 16)).astype(np.float32))
    flags = ("--gallery", split[0], "--probes", split[1])
    alone, amid = run(*flags), run(*flags, "--distractors", "shards", "shards/1.npy")
    assert amid["num_distractors"] == 1600
    assert amid["rank"]["1"] < alone["rank"]["1"]


def test_megaface_protocol_on_its_files() -> None:
    rng = np.random.default_rng(4)
    for person in ("Ann", "Bob"):
        folder = Path("facescrub") / person
        folder.mkdir(parents=True)
        center = rng.normal(size=8)
        for image in range(3):
            write_megaface_file(folder / f"{image}_x.bin", center + 0.3 * rng.normal(size=8))
    for row in range(7):
        folder = Path("megaface") / str(row % 2)
        folder.mkdir(parents=True, exist_ok=True)
        write_megaface_file(folder / f"{row}_x.bin", rng.normal(size=8))
    figures = run("--probes", "facescrub", "--distractors", "megaface")
    assert (figures["num_mated"], figures["num_distractors"]) == (12, 7)
    assert figures["rank"]["20"] == 1.0
    assert "MegaFace" in figures["used"]["protocol"]


def test_data_sets_are_embedded_and_pooled(
    model: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, numbers in (("gallery", (1, 2)), ("probes", (3, 4))):
        for person in faces.iterdir():
            (Path(name) / person.name).mkdir(parents=True)
            for number in numbers:
                file = f"{person.name}_{number:04d}.jpg"
                shutil.copy(person / file, Path(name) / person.name / file)
    flags = ("--gallery", "gallery", "--probes", "probes", "--model", str(model))
    every = run(*flags)
    pooled = run(*flags, "--enrol", "mean")
    assert (every["num_gallery"], pooled["num_gallery"]) == (10, 5)
    assert every["num_mated"] == pooled["num_mated"] == 10
    page = Path("runs/eval-identification/report.html").read_text()
    assert page.count('class="pair"') >= 10  # ten misses, and what was mistaken
    assert "n/a: cannot be measured with 0 unmated probes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--probes", "probes.npz"], "give --gallery, --distractors, or both"),
        (["--probes", "probes.npz", "--gallery", "rows.npy"], "rows.npy: tell no identities"),
        (["--probes", "probes.npz", "--gallery", "nowhere"], "nowhere"),
        (
            ["--probes", "faces", "--gallery", "gallery.npz"],
            "faces: images, not features; give --model",
        ),
        (["--probes", "probes.npz", "--gallery", "gallery.npz", "--search", "x"], "--search x"),
        (["--probes", "probes.npz", "--gallery", "gallery.npz", "--max-rank", "0"], "--max-rank 0"),
        (
            ["--probes", "probes.npz", "--gallery", "gallery.npz", "--max-rank", "1000000000"],
            "--max-rank 1000000000: must be 1 to 1000000",
        ),
        (["--probes", "probes.npz", "--gallery", "other.npz"], "none of 60 probes"),
        (
            ["--probes", "probes.npz", "--gallery", "small.npz"],
            "small.npz: embeddings of 8 numbers, those of probes.npz have 16",
        ),
        (
            ["--probes", "probes.npz", "--distractors", "small.npz"],
            "small.npz: embeddings of 8 numbers, those of probes.npz have 16",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    split: tuple[str, str],
    faces: Path,
    flags: list[str],
    names: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    np.save("rows.npy", np.ones((3, 16), np.float32))
    np.savez("small.npz", embeddings=np.ones((1, 8), np.float32), identities=np.array(["x"]))
    np.savez("other.npz", embeddings=np.ones((1, 16), np.float32), identities=np.array(["x"]))
    assert eval_command.main(["identification", *flags]) == EXIT_BAD_INPUT
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert names in line
