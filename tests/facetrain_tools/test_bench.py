from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain_tools.cli import main


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    for person in ("Ada", "Alan"):
        (tmp_path / "faces" / person).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((16, 16, 3), 40 * number, np.uint8)
            cv2.imwrite(str(tmp_path / "faces" / person / f"{number}.png"), pixels)
    return tmp_path / "faces"


def test_prints_each_stage_and_what_bounds_it(
    faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--image-size", "16", "--num-images", "8", "--batch-size", "4")
    assert main(["bench", "loader", str(faces), *size]) == 0
    out = capsys.readouterr().out
    assert "6 images" in out
    for row in ("read", "decode", "transform", "collate", "whole batches", "cv2.imdecode alone"):
        assert f"\n{row} " in out
    assert "img/s with this process alone; bound by " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        (["FACES"], "image is 16x16, expected 112x112"),
        (["FACES", "--format", "zip"], "format 'zip'; known"),
        (["FACES", "--transforms", "spin"], "unknown transform 'spin'"),
    ],
)
def test_bad_input_is_one_line(
    faces: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    filled = [str(faces) if argument == "FACES" else argument for argument in arguments]
    assert main(["bench", "loader", *filled]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
