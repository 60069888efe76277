"""Rows of pictures: whole, scaled down, escaped."""

from __future__ import annotations

import base64
import re

import cv2
import numpy as np

from facetrain.report import Picture, PictureRow, Pictures, Section, render_page

HOSTILE = "<b>\"Ann\" & 'Bob'</b>"


def test_pictures_are_in_the_page_and_scaled_down_only() -> None:
    wide, small = np.full((100, 400, 3), (200, 30, 60), np.uint8), np.zeros((20, 10, 3), np.uint8)
    page = render_page(
        "t", [Section("s", [Pictures([PictureRow("", [Picture(wide), Picture(small)])])])]
    )
    data = re.findall(r"data:image/jpeg;base64,([^\"]+)", page)
    first, second = (
        cv2.imdecode(np.frombuffer(base64.b64decode(text), np.uint8), cv2.IMREAD_COLOR_RGB)
        for text in data
    )
    assert first.shape == (28, 112, 3)
    assert second.shape == (20, 10, 3)
    assert np.abs(first.astype(int) - (200, 30, 60)).max() < 8
    assert 'width="112" height="28"' in page


def test_titles_and_captions_are_escaped() -> None:
    html = Pictures(
        [PictureRow(HOSTILE, [Picture(np.zeros((4, 4, 3), np.uint8), HOSTILE)])]
    ).to_html()
    assert "<b>" not in html
    assert html.count("&lt;b&gt;") == 3
