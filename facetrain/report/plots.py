"""Plots of a run: SVG that takes the colour of the page's text, so it reads in light and dark.

Nothing here keeps state: no pyplot, no global figure. matplotlib is imported on first use.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import Roc
from facetrain.report.tables import far_text

#: Okabe & Ito's colours, which every kind of colour vision tells apart; the blue is a little
#: lighter than theirs, to read on black too.
COLORS = ("#2B8CD2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")

_SIZE_INCHES = (6.0, 3.6)
_FOREGROUND = "#010203"  # replaced by currentColor in the SVG
_GRID = "#80808055"
_STYLE: Any = {
    "axes.edgecolor": _FOREGROUND,
    "axes.labelcolor": _FOREGROUND,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _GRID,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "facetrain",
    "text.color": _FOREGROUND,
    "text.parse_math": False,
    "xtick.color": _FOREGROUND,
    "ytick.color": _FOREGROUND,
}
_NUM_ROC_POINTS = 400
_NUM_BINS = 80
_GAP_PIXELS = 4
_SHORT_LABEL = 24  # characters; three such legend entries fit side by side


def loss_curve(steps: Sequence[int], losses: Sequence[float]) -> bytes:
    """Training loss per step, SVG: every value, and an average over about a 20th of the run."""
    with _axes("step", "loss") as (axes, drawing):
        values = np.asarray(losses, dtype=np.float64)
        width = max(1, len(values) // 20)
        averaged = width > 1 and bool(np.isfinite(values).all())
        # Behind its average the curve itself is pale; without one it is all there is to see.
        axes.plot(steps, values, color=COLORS[0], alpha=0.35 if averaged else 1.0)
        if averaged:
            mean = np.convolve(values, np.full(width, 1.0 / width), mode="valid")
            # Each average stands at the last step that it covers: it knows no future.
            axes.plot(steps[width - 1 :], mean, color=COLORS[0])
        axes.margins(x=0.01)
    return drawing.getvalue()


def throughput(steps: Sequence[int], images_per_second: Sequence[float]) -> bytes:
    """Images per second over the run, SVG, and their median."""
    with _axes("step", "images/s") as (axes, drawing):
        axes.plot(steps, images_per_second, color=COLORS[2])
        if len(images_per_second):
            median = float(np.median(images_per_second))
            line = axes.axhline(median, color=_FOREGROUND, linestyle="--", linewidth=1.0)
            _legend(axes, [line], [f"median {median:,.0f}"])
        axes.set_ylim(bottom=0.0)
        axes.margins(x=0.01)
    return drawing.getvalue()


def roc_curves(systems: Mapping[str, Roc]) -> bytes:
    """TAR over FAR with a logarithmic FAR axis, SVG; a curve begins at one impostor pair.

    Raises:
        FacetrainError: no system given.
    """
    if not systems:
        raise FacetrainError("ROC plot: no system given")
    with _axes("FAR", "TAR") as (axes, drawing):
        lines = []
        for (_, roc), color in zip(systems.items(), _colors(), strict=False):
            far = np.geomspace(1.0 / roc.num_impostor, 1.0, _NUM_ROC_POINTS)
            # The honest rule at every point: the largest TAR whose FAR is at most this one.
            tar = roc.tar[np.searchsorted(roc.far, far * (1.0 + 1e-12), side="right") - 1]
            lines += axes.plot(far, tar, color=color)
        axes.set_xscale("log")
        axes.set_xlim(min(1.0 / roc.num_impostor for roc in systems.values()), 1.0)
        axes.set_ylim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(lambda value, _: far_text(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        _legend(axes, lines, list(systems))
    return drawing.getvalue()


def score_histogram(
    genuine: np.ndarray, impostor: np.ndarray, threshold: float | None = None
) -> bytes:
    """Share of genuine and of impostor pairs per score, SVG, with a threshold if one is given."""
    low = float(min(genuine.min(), impostor.min()))
    high = float(max(genuine.max(), impostor.max()))
    edges = np.linspace(low, high if high > low else low + 1.0, _NUM_BINS + 1)
    with _axes("cosine", "share of pairs") as (axes, drawing):
        handles = []
        for values, color in ((impostor, COLORS[1]), (genuine, COLORS[0])):
            shares = np.histogram(values, edges)[0] / len(values)
            handles.append(axes.stairs(shares, edges, fill=True, color=color, alpha=0.55))
        labels = [f"impostor ({len(impostor):,})", f"genuine ({len(genuine):,})"]
        if threshold is not None:
            handles.append(axes.axvline(threshold, color=_FOREGROUND, linestyle="--", linewidth=1))
            labels.append(f"threshold {threshold:.3f}")
        _legend(axes, handles, labels)
        axes.set_ylim(bottom=0.0)
    return drawing.getvalue()


def memory_bars(peaks_bytes: Mapping[str, int], budget_bytes: int | None = None) -> bytes:
    """Peak memory of each case, SVG, as bars in MiB beside a line at the budget."""
    height = 1.1 + 0.42 * len(peaks_bytes)
    with _axes("MiB", "", height_inches=height) as (axes, drawing):
        mebibytes = [value / 2**20 for value in peaks_bytes.values()]
        rows = np.arange(len(mebibytes))
        colors = [color for _, color in zip(mebibytes, _colors(), strict=False)]
        axes.barh(rows, mebibytes, color=colors, height=0.62)
        # The figure stands with the name: beside its bar the budget's line would cross it.
        names = [f"{name}  {peak:,.1f}" for name, peak in zip(peaks_bytes, mebibytes, strict=True)]
        axes.set_yticks(rows, names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            line = axes.axvline(budget, color=_FOREGROUND, linestyle="--", linewidth=1.2)
            axes.set_xlim(right=max(axes.get_xlim()[1], 1.05 * budget))
            _legend(axes, [line], [f"budget {budget:,.1f}"])
    return drawing.getvalue()


def memory_over_step(
    bytes_by_name: Mapping[str, np.ndarray], backward_from: int, budget_bytes: int | None = None
) -> bytes:
    """Memory while each operator of a step runs, SVG, with a line at the budget.

    Args:
        bytes_by_name: one array [operators] each, drawn one over the other.
        backward_from: number of the first operator of backward.
    """
    with _axes("operator", "MiB") as (axes, drawing):
        handles, labels = [], []
        for (name, values), color in zip(bytes_by_name.items(), _colors(), strict=False):
            numbers = np.arange(len(values))
            axes.fill_between(numbers, values / 2**20, step="mid", color=color, alpha=0.25)
            handles += axes.step(numbers, values / 2**20, where="mid", color=color, linewidth=1)
            labels.append(f"{name} ({values.max() / 2**20:,.0f})")
        handles.append(axes.axvline(backward_from, color=_FOREGROUND, linestyle=":", linewidth=1))
        labels.append("backward begins")
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            handles.append(axes.axhline(budget, color=_FOREGROUND, linestyle="--", linewidth=1.2))
            labels.append(f"budget {budget:,.0f}")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, max(len(values) for values in bytes_by_name.values()) - 1)
        _legend(axes, handles, labels)
    return drawing.getvalue()


def budget_curve(
    budgets_bytes: Sequence[int], overheads: Sequence[float], budget_bytes: int | None = None
) -> bytes:
    """Time that recomputation adds by budget, SVG, with a line at the one chosen."""
    with _axes("budget, MiB", "added time, %") as (axes, drawing):
        mebibytes = [size / 2**20 for size in budgets_bytes]
        axes.plot(mebibytes, [100 * share for share in overheads], color=COLORS[0], marker="o")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            line = axes.axvline(budget, color=_FOREGROUND, linestyle="--", linewidth=1.2)
            _legend(axes, [line], [f"budget {budget:,.1f}"])
    return drawing.getvalue()


def face_sheet(rows: Sequence[Sequence[np.ndarray]]) -> bytes:
    """Faces in rows, such as one identity each, PNG with transparent gaps.

    Args:
        rows: uint8 RGB images [H, W, 3], all of one size; rows may differ in length.

    Raises:
        FacetrainError: no image, or images of several sizes.
    """
    sizes = {image.shape for row in rows for image in row}
    if len(sizes) != 1:
        raise FacetrainError(f"face sheet: images of sizes {sorted(sizes)}, expected one size")
    height, width, _ = sizes.pop()
    tall, wide = height + _GAP_PIXELS, width + _GAP_PIXELS
    num_columns = max(map(len, rows))
    sheet = np.zeros(
        (len(rows) * tall - _GAP_PIXELS, num_columns * wide - _GAP_PIXELS, 4), np.uint8
    )
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            cell = sheet[y * tall : y * tall + height, x * wide : x * wide + width]
            cell[:, :, :3] = image[:, :, ::-1]
            cell[:, :, 3] = 255
    _, data = cv2.imencode(".png", sheet)
    return data.tobytes()


@contextmanager
def _axes(
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
        axes = figure.add_subplot()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        yield axes, drawing
        svg = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
    drawing.write(svg.getvalue().replace(_FOREGROUND, "currentColor").encode("utf-8"))


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend above the axes, where it covers nothing."""
    # matplotlib leaves labels that begin with an underscore out of a legend.
    shown = [f"\u200b{label}" if label.startswith("_") else label for label in labels]
    num_columns = 3 if max(map(len, shown)) <= _SHORT_LABEL else 1
    axes.legend(
        handles, shown, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=num_columns, fontsize=9
    )


def _colors() -> Iterator[str]:
    while True:
        yield from COLORS
