"""Plots are valid, self-contained images in the page's own colour, whatever the data."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import cv2
import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.report.plots import (
    face_sheet,
    loss_curve,
    memory_bars,
    throughput,
)


def texts(svg: bytes) -> list[str]:
    """The texts of an SVG; fails where it is not well formed or not in the page's colour."""
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    content = svg.decode()
    assert "currentColor" in content
    assert "#010203" not in content
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")]


@pytest.mark.parametrize("num_steps", [0, 1, 300])
def test_curves_over_any_number_of_steps(num_steps: int) -> None:
    values = np.linspace(9.0, 1.0, num_steps)
    assert "loss" in texts(loss_curve(range(num_steps), values))
    assert "images/s" in texts(throughput(range(num_steps), values))


def test_a_single_step_is_a_point() -> None:
    for draw in (loss_curve, throughput):
        assert draw([8], [50.0]).count(b"<use") > draw([8, 8], [50.0, 50.0]).count(b"<use")


def test_loss_that_is_not_finite_leaves_a_gap() -> None:
    texts(loss_curve(range(100), [float("nan")] + [1.0] * 99))


def test_memory_bars_state_peaks_and_budget_in_mib() -> None:
    shown = texts(memory_bars({"plain": 300 << 20, "measured": 100 << 20}, budget_bytes=128 << 20))
    assert {"plain  300.0", "measured  100.0", "budget 128.0"} <= set(shown)
    assert not any("budget" in text for text in texts(memory_bars({"plain": 1 << 20})))


def test_same_data_gives_the_same_bytes() -> None:
    assert loss_curve([0, 1], [2.0, 1.0]) == loss_curve([0, 1], [2.0, 1.0])


def test_face_sheet_holds_every_face_in_its_place() -> None:
    rng = np.random.default_rng(0)
    faces = [rng.integers(0, 256, (8, 6, 3), dtype=np.uint8) for _ in range(3)]
    data = np.frombuffer(face_sheet([faces[:2], faces[2:]]), np.uint8)
    sheet = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    assert sheet.shape == (2 * 8 + 4, 2 * 6 + 4, 4)
    for face, (y, x) in zip(faces, [(0, 0), (0, 10), (12, 0)], strict=True):
        np.testing.assert_array_equal(sheet[y : y + 8, x : x + 6, 2::-1], face)
    assert (sheet[12:, 10:, 3] == 0).all()
    with pytest.raises(FacetrainError, match="expected one size"):
        face_sheet([[faces[0], faces[1][:4]]])
