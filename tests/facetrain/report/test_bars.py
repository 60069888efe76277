"""The bar chart shows every name and count."""

from __future__ import annotations

from facetrain.report.bars import bar_chart


def test_names_and_counts_are_in_the_drawing() -> None:
    svg = bar_chart({"1": 4069, "2 to 4": 12, "1,000 or more": 1}, "images", "identities").decode()
    for text in ("4,069", "2 to 4", "1,000 or more", "identities"):
        assert text in svg
