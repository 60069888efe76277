"""`facetrain eval ijb` on a made-up set, from features and from loose crops."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_datasets.prepare.alignment import TEMPLATE
from facetrain_tools import eval as eval_command

NUM_SUBJECTS, FACES_EACH = 12, 6


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    """12 subjects with two templates of three faces each; subjects 0-5 in G1, the others in G2."""
    folder = tmp_path / "meta"
    folder.mkdir()
    points = " ".join(f"{value:.4f}" for value in (TEMPLATE + 20).ravel())
    faces, landmarks, pairs = [], [], []
    for subject in range(NUM_SUBJECTS):
        for face in range(FACES_EACH):
            name = f"{subject * FACES_EACH + face}.jpg"
            template = 100 + 2 * subject + face // 3
            faces.append(f"{name} {template} {face // 2}")
            landmarks.append(f"{name} {points} 0.9{face}")
    for a in range(2 * NUM_SUBJECTS):
        pairs += [f"{100 + a} {100 + b} {int(a // 2 == b // 2)}" for b in range(a)]
    gallery = {"G1": range(6), "G2": range(6, 12)}
    for name, subjects in gallery.items():
        rows = [f"{100 + 2 * subject},{subject}" for subject in subjects]
        text = "\n".join(["TEMPLATE_ID,SUBJECT_ID", *rows])
        (folder / f"ijbc_1N_gallery_{name}.csv").write_text(text)
    probes = [f"{101 + 2 * subject},{subject}" for subject in range(NUM_SUBJECTS)]
    texts = {
        "face_tid_mid.txt": faces,
        "name_5pts_score.txt": landmarks,
        "template_pair_label.txt": pairs,
        "1N_probe_mixed.csv": ["TEMPLATE_ID,SUBJECT_ID", *probes],
    }
    for name, lines in texts.items():
        (folder / f"ijbc_{name}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(NUM_SUBJECTS), FACES_EACH)
    values = rng.normal(size=(NUM_SUBJECTS, 8))[subject] + 0.8 * rng.normal(size=(72, 8))
    np.save(tmp_path / "rows.npy", values.astype(np.float32))
    return tmp_path / "rows.npy"


@pytest.mark.usefixtures("real_plots")
def test_both_tasks_from_features(
    meta: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["ijb", "--meta", str(meta), "--features", str(rows)]
    assert eval_command.main([*flags, "--far", "0.1", "1e-6"]) == 0
    text = capsys.readouterr().out
    assert "media-score" in text
    assert "n/a: cannot be measured with 264 impostor pairs" in text
    assert all(name in text for name in ("G1", "G2", "mean", "rank-10", "TPIR@FPIR=1e-2"))
    figures = json.loads(Path("runs/eval-ijb/results.json").read_text())
    assert figures["verification"]["num_genuine"] == 12
    # The protocol again, slowly.
    values = np.load(rows).astype(float)
    unit = {}
    for template in range(24):
        first = 3 * template
        faces = [values[first + i] * (0.9 + 0.01 * ((first + i) % 6)) for i in range(3)]
        media = [((first + i) % 6) // 2 for i in range(3)]
        total = sum(
            np.mean([f for f, m in zip(faces, media, strict=True) if m == one], axis=0)
            for one in set(media)
        )
        unit[template] = total / np.linalg.norm(total)
    genuine = sorted(unit[2 * s] @ unit[2 * s + 1] for s in range(12))
    impostor = sorted(
        (unit[a] @ unit[b] for a in range(24) for b in range(a) if a // 2 != b // 2), reverse=True
    )
    bound = impostor[26]  # 26 of 264 may be accepted at FAR 0.1
    assert figures["verification"]["tar_at_far"][0]["tar"] == np.mean(np.array(genuine) > bound)
    hits = [
        max(range(6), key=lambda s: unit[2 * s] @ unit[2 * probe + 1]) == probe
        for probe in range(6)
    ]
    assert figures["identification"]["G1"]["rank"]["1"] == pytest.approx(np.mean(hits))
    page = Path("runs/eval-ijb/report.html").read_text()
    assert page.count("<svg") == 5
    assert "template 1" in page


def test_pooling_rule_and_task_are_choices(
    meta: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["ijb", "--meta", str(meta), "--features", str(rows), "--pooling", "mean-unit"]
    assert eval_command.main([*flags, "--task", "1:N"]) == 0
    assert "TAR@FAR" not in capsys.readouterr().out
    assert eval_command.main([*flags, "--task", "1:1", "--far-rule", "nearest"]) == 0
    assert "FAR rule: nearest" in capsys.readouterr().out
    assert eval_command.main([*flags[:-1], "best"]) == EXIT_BAD_INPUT
    assert "--pooling best: unknown; choose one of media-score" in capsys.readouterr().err


def test_loose_crops_are_aligned_and_embedded(meta: Path, model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    crops = tmp_path / "crops"
    crops.mkdir()
    for subject in range(NUM_SUBJECTS):
        person = cv2.resize(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8), (160, 150))
        for face in range(FACES_EACH):
            noisy = np.clip(person + rng.integers(0, 30, person.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(crops / f"{subject * FACES_EACH + face}.jpg"), noisy)
    flags = ["ijb", "--meta", str(meta), "--model", str(model), "--images", str(crops)]
    assert eval_command.main(flags) == 0
    page = Path("runs/eval-ijb/report.html").read_text()
    assert page.count('class="pair"') == 24
    assert eval_command.main(flags[:-2]) == EXIT_BAD_INPUT
    (crops / "7.jpg").unlink()
    assert eval_command.main(flags) == EXIT_BAD_INPUT


def test_features_of_another_set_are_refused(
    meta: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(rows, np.load(rows)[:-1])
    assert (
        eval_command.main(["ijb", "--meta", str(meta), "--features", str(rows)]) == EXIT_BAD_INPUT
    )
    assert "expected one row for each of the 72 images" in capsys.readouterr().err
