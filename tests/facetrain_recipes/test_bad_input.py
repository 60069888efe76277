"""Each kind of bad input: one line that names what, where and what to do; exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain_tools.cli import main
from tests.facetrain_recipes.conftest import MiniLfw


def _no_data(mini: MiniLfw) -> str:
    shutil.rmtree(mini.data)
    return str(mini.data)


def _no_protocols(mini: MiniLfw) -> str:
    shutil.rmtree(mini.protocols)
    return str(mini.protocols / "lfw_pairsDevTest.txt")


def _empty_identity(mini: MiniLfw) -> str:
    (mini.data / "Nobody").mkdir()
    return "Nobody"


def _unreadable_image(mini: MiniLfw) -> str:
    path = mini.image(1, 2)
    path.write_bytes(path.read_bytes()[:100])
    return str(path)


def _empty_image(mini: MiniLfw) -> str:
    mini.image(1, 2).write_bytes(b"")
    return str(mini.image(1, 2))


def _image_of_another_size(mini: MiniLfw) -> str:
    cv2.imwrite(str(mini.image(0, 3)), np.zeros((96, 112, 3), np.uint8))
    return f"{mini.image(0, 3)}: image is 112x96, expected 112x112"


def _grey_image(mini: MiniLfw) -> str:
    cv2.imwrite(str(mini.image(2, 1)), np.zeros((112, 112), np.uint8))
    return f"{mini.image(2, 1)}: image is grey"


def _bad_test_image(mini: MiniLfw) -> str:
    mini.image(5, 2).write_bytes(b"no image")
    return str(mini.image(5, 2))


def _pair_of_an_absent_file(mini: MiniLfw) -> str:
    mini.image(5, 2).unlink()
    return str(mini.image(5, 2))


def _broken_pair_line(mini: MiniLfw) -> str:
    path = mini.protocols / "lfw_pairsDevTest.txt"
    path.write_text(path.read_text().replace("person_00005\t1\t3", "person_00005\tone\t3"))
    return "lfw_pairsDevTest.txt:"


SPOIL: dict[str, Callable[[MiniLfw], str]] = {
    "no data folder": _no_data,
    "no protocols folder": _no_protocols,
    "empty identity": _empty_identity,
    "unreadable image": _unreadable_image,
    "empty image": _empty_image,
    "image of another size": _image_of_another_size,
    "grey image": _grey_image,
    "bad test image": _bad_test_image,
    "pair of an absent file": _pair_of_an_absent_file,
    "broken pair line": _broken_pair_line,
}

FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "unknown flag": (["--lrx", "3"], ["--lrx", "--help"]),
    "flag without a value": (["--lr"], ["--lr"]),
    "no number": (["--lr", "fast"], ["--lr", "fast"]),
    "three errors": (
        ["--backbone", "resnet", "--lr", "-1", "--memory", "4 gigs"],
        ["--backbone resnet", "--lr -1.0", "--memory 4 gigs"],
    ),
    "budget below the floor": (["--memory", "1MiB"], ["1.0MiB", "the least"]),
    "batch too small": (["--micro-batches", "4"], ["--global-batch-size 6", "8 at least"]),
    "nothing to resume": (["--resume"], ["no checkpoint in", "without --resume"]),
    "far too many processes": (["--num-processes", "100000"], ["--num-processes 100000"]),
    "head memory too small": (
        ["--head-memory", "1KiB"],
        ["--head-memory 1KiB: a step of 6 rows and 4 identities takes", "at least"],
    ),
    "no margin option": (
        ["--margin-options", "nonsense"],
        ["--margin-options nonsense: each must be NAME=NUMBER"],
    ),
    "option without effect": (
        ["--center-momentum", "bf16", "--optimizer", "adamw"],
        ["--center-momentum bf16: is for SGD"],
    ),
    "no GPU": (["--device", "cuda"], ["--device cuda", "--device cpu"]),
}


def _one_line_error(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("kind", SPOIL)
def test_bad_data_is_named(
    kind: str, mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = SPOIL[kind](mini_lfw)
    assert main(mini_lfw.flags()) == 2
    assert expected in _one_line_error(capsys)


@pytest.mark.parametrize("kind", FLAGS)
def test_bad_flags_are_named(
    kind: str, mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, expected = FLAGS[kind]
    assert main(mini_lfw.flags(*flags)) == 2
    error = _one_line_error(capsys)
    for text in expected:
        assert text in error


def test_a_folder_without_initial_centers_is_named(
    mini_lfw: MiniLfw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(mini_lfw.flags("--initial-centers", str(empty))) == 2
    assert f"arcface head {empty}: no file of a head" in _one_line_error(capsys)


def test_missing_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lfw"]) == 2
    assert "--data" in _one_line_error(capsys)


@pytest.mark.parametrize("arguments", [["trane"], ["train", "lfv"], ["eval", "verify"]])
def test_unknown_command_recipe_or_evaluation_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert arguments[-1] in _one_line_error(capsys)


def test_bad_images_are_left_out_and_listed_on_request(
    mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [_unreadable_image(mini_lfw), str(mini_lfw.image(2, 1))]
    _grey_image(mini_lfw)
    assert main(mini_lfw.flags("--bad-images", "skip")) == 0
    out = capsys.readouterr().out
    assert "2 bad images left out" in out
    assert "training images: 14 of 4 identities" in out
    listed = (mini_lfw.root / "run" / "skipped.jsonl").read_text()
    assert all(path in listed for path in paths)


@pytest.mark.parametrize("name", ["common.pt", "rows-0.pt", "manifest.json"])
def test_checkpoint_cut_in_half_is_named(
    name: str, mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_without_report(mini_lfw)
    capsys.readouterr()
    last = sorted((mini_lfw.root / "run" / "checkpoints").glob("step-*"))[-1]
    (last / name).write_bytes((last / name).read_bytes()[: (last / name).stat().st_size // 2])
    assert main(mini_lfw.flags("--resume")) == 2
    error = _one_line_error(capsys)
    assert str(last / name) in error
    assert "to resume from step" in error


def _run_without_report(mini: MiniLfw) -> None:
    """As if killed between the last step and the report."""
    assert main(mini.flags()) == 0
    (mini.root / "run" / "results.json").unlink()


def _contents(mini: MiniLfw) -> dict[str, bytes]:
    run = mini.root / "run"
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and "tensorboard" not in path.parts
    }


def test_a_refused_resume_names_the_differences_and_changes_nothing(
    mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    _run_without_report(mini_lfw)
    before = _contents(mini_lfw)
    shutil.rmtree(mini_lfw.data / "person_00000")
    capsys.readouterr()
    assert main(mini_lfw.flags("--resume", "--embedding-size", "8", "--scale", "16")) == 2
    error = _one_line_error(capsys)
    assert "embedding-size is 16 there and 8 now" in error
    assert "scale is 32.0 there and 16.0 now" in error
    assert "images is 16 there and 12 now" in error
    assert "identities is 4 " in error
    assert _contents(mini_lfw) == before


def test_a_run_killed_before_its_report_resumes_to_the_same_report(mini_lfw: MiniLfw) -> None:
    _run_without_report(mini_lfw)
    before = _contents(mini_lfw)
    assert main(mini_lfw.flags("--resume")) == 0
    after = _contents(mini_lfw)
    results = json.loads(after["results.json"])
    assert results["step"] == 4
    assert results["images_per_s"] > 0
    for name in ("metrics.jsonl", "checkpoints/step-00000004/rows-0.pt"):
        assert after[name] == before[name]


def test_an_unfinished_run_and_each_checkpoint_can_be_evaluated(
    mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(mini_lfw.flags()) == 0
    run = mini_lfw.root / "run"

    def accuracy(model: Path) -> tuple[str, str]:
        capsys.readouterr()
        pairs = mini_lfw.protocols / "lfw_pairsDevTest.txt"
        flags = ("--model", str(model), "--data", str(mini_lfw.data), "--pairs", str(pairs))
        out_folder = ("--out", str(mini_lfw.root / "eval"))
        assert main(["eval", "verification", *flags, "--folds", "4", *out_folder]) == 0
        out = capsys.readouterr().out
        return out, out[out.index("accuracy") :]

    _, finished = accuracy(run)
    (run / "model.pt").unlink()
    for model in (run, run / "checkpoints" / "step-00000004"):
        out, figures = accuracy(model)
        assert "mobilefacenet_tiny, step 4" in out
        assert figures == finished
    out, _ = accuracy(run / "checkpoints" / "step-00000002")
    assert "step 2" in out
    assert (
        main(["eval", "verification", "--model", str(mini_lfw.root), "--data", ".", "--pairs", "."])
        == 2
    )


def test_a_finished_run_says_so_and_stays_as_it_is(
    mini_lfw: MiniLfw, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(mini_lfw.flags()) == 0
    before = _contents(mini_lfw)
    capsys.readouterr()
    assert main(mini_lfw.flags("--resume", "--lr", "7")) == 0
    out = capsys.readouterr().out
    assert f"run folder {mini_lfw.root / 'run'} is finished" in out
    assert main(mini_lfw.flags("--resume", "--scale", "16")) == 2
    assert "scale is 32.0 there and 16.0 now" in _one_line_error(capsys)
    assert _contents(mini_lfw) == before
