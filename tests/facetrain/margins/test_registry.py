"""Margins by name."""

from __future__ import annotations

import pytest

from facetrain.errors import FacetrainError
from facetrain.margins import MARGINS, build_margin


def test_every_margin_is_built_with_its_papers_value_and_ends_of_its_range() -> None:
    assert sorted(MARGINS) == ["arcface", "cosface"]
    for name, kind in MARGINS.items():
        assert build_margin(name) == kind()
        for value in kind.value_range:
            assert build_margin(name, value) == kind(value)


def test_unknown_margin_lists_the_known() -> None:
    with pytest.raises(FacetrainError, match="'arcfase' is unknown: use one of arcface, cosface"):
        build_margin("arcfase")


def test_margin_value_out_of_range_names_the_range() -> None:
    with pytest.raises(FacetrainError, match=r"margin value 2 of cosface: must be in \[0, 1\]"):
        build_margin("cosface", 2)
