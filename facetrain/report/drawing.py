"""What every plot is drawn with: SVG that takes the colour of the page's text, light or dark.

Nothing here keeps state: no pyplot, no global figure. matplotlib is imported on first use.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Okabe & Ito's colours, which every kind of colour vision tells apart; the blue is a little
#: lighter than theirs, to read on black too.
COLORS = ("#2B8CD2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")

_SIZE_INCHES = (6.0, 3.6)
FOREGROUND = "#010203"  # replaced by currentColor in the SVG
_GRID = "#80808055"
_STYLE: Any = {
    "axes.edgecolor": FOREGROUND,
    "axes.labelcolor": FOREGROUND,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _GRID,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "facetrain",
    "text.color": FOREGROUND,
    "text.parse_math": False,
    "xtick.color": FOREGROUND,
    "ytick.color": FOREGROUND,
}
_SHORT_LABEL = 24  # characters; three such legend entries fit side by side


@contextmanager
def axes(
    x_label: str, y_label: str, height_inches: float = _SIZE_INCHES[1]
) -> Iterator[tuple[Any, io.BytesIO]]:
    """Axes to draw on, and the file that holds the finished SVG afterwards."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawing = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_SIZE_INCHES[0], height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        axis = figure.add_subplot()
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        yield axis, drawing
        svg = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
    drawing.write(svg.getvalue().replace(FOREGROUND, "currentColor").encode("utf-8"))


def legend(axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend above the axes, where it covers nothing."""
    # matplotlib leaves labels that begin with an underscore out of a legend.
    shown = [f"\u200b{label}" if label.startswith("_") else label for label in labels]
    num_columns = 3 if max(map(len, shown)) <= _SHORT_LABEL else 1
    axes.legend(
        handles, shown, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=num_columns, fontsize=9
    )


def colors() -> Iterator[str]:
    while True:
        yield from COLORS
