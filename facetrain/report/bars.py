"""Bars over named ranges, such as identities by their number of images."""

from __future__ import annotations

from collections.abc import Mapping

from facetrain.report.drawing import COLORS, axes


def bar_chart(counts: Mapping[str, int], x_label: str, y_label: str) -> bytes:
    """One bar per name, in their order, SVG, on a logarithmic axis; its count stands above it."""
    with axes(x_label, y_label) as (axis, drawing):
        bars = axis.bar(list(counts), list(counts.values()), color=COLORS[0], width=0.8)
        axis.bar_label(bars, [f"{count:,}" for count in counts.values()], fontsize=8, padding=2)
        axis.set_yscale("log")
        axis.set_ylim(0.7, 2.0 * max(counts.values()))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.grid(visible=False, axis="x")
        axis.tick_params(axis="x", rotation=45, labelsize=8)
    return drawing.getvalue()
