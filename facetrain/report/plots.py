"""Plots of a run: its loss, speed and memory, and sheets of faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from facetrain.errors import FacetrainError
from facetrain.report.drawing import COLORS, FOREGROUND, axes, colors, legend

_GAP_PIXELS = 4


def loss_curve(steps: Sequence[int], losses: Sequence[float]) -> bytes:
    """Training loss per step, SVG: every value, and an average over about a 20th of the run."""
    with axes("step", "loss") as (axis, drawing):
        values = np.asarray(losses, dtype=np.float64)
        width = max(1, len(values) // 20)
        averaged = width > 1 and bool(np.isfinite(values).all())
        # Behind its average the curve itself is pale; without one it is all there is to see.
        alpha = 0.35 if averaged else 1.0
        axis.plot(steps, values, color=COLORS[0], alpha=alpha, marker=_marker(steps))
        if averaged:
            mean = np.convolve(values, np.full(width, 1.0 / width), mode="valid")
            # Each average stands at the last step that it covers: it knows no future.
            axis.plot(steps[width - 1 :], mean, color=COLORS[0])
        axis.margins(x=0.01)
    return drawing.getvalue()


def _marker(steps: Sequence[int]) -> str | None:
    """A line through a single point cannot be seen."""
    return "o" if len(steps) == 1 else None


def throughput(steps: Sequence[int], images_per_second: Sequence[float]) -> bytes:
    """Images per second over the run, SVG, and their median."""
    with axes("step", "images/s") as (axis, drawing):
        axis.plot(steps, images_per_second, color=COLORS[2], marker=_marker(steps))
        if len(images_per_second):
            median = float(np.median(images_per_second))
            line = axis.axhline(median, color=FOREGROUND, linestyle="--", linewidth=1.0)
            legend(axis, [line], [f"median {median:,.0f}"])
        axis.set_ylim(bottom=0.0)
        axis.margins(x=0.01)
    return drawing.getvalue()


def memory_bars(peaks_bytes: Mapping[str, int], budget_bytes: int | None = None) -> bytes:
    """Peak memory of each case, SVG, as bars in MiB beside a line at the budget."""
    height = 1.1 + 0.42 * len(peaks_bytes)
    with axes("MiB", "", height_inches=height) as (axis, drawing):
        mebibytes = [value / 2**20 for value in peaks_bytes.values()]
        rows = np.arange(len(mebibytes))
        bar_colors = [color for _, color in zip(mebibytes, colors(), strict=False)]
        axis.barh(rows, mebibytes, color=bar_colors, height=0.62)
        # The figure stands with the name: beside its bar the budget's line would cross it.
        names = [f"{name}  {peak:,.1f}" for name, peak in zip(peaks_bytes, mebibytes, strict=True)]
        axis.set_yticks(rows, names)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            line = axis.axvline(budget, color=FOREGROUND, linestyle="--", linewidth=1.2)
            axis.set_xlim(right=max(axis.get_xlim()[1], 1.05 * budget))
            legend(axis, [line], [f"budget {budget:,.1f}"])
    return drawing.getvalue()


def memory_over_step(
    bytes_by_name: Mapping[str, np.ndarray], backward_from: int, budget_bytes: int | None = None
) -> bytes:
    """Memory while each operator of a step runs, SVG, with a line at the budget.

    Args:
        bytes_by_name: one array [operators] each, drawn one over the other.
        backward_from: number of the first operator of backward.
    """
    with axes("operator", "MiB") as (axis, drawing):
        handles, labels = [], []
        for (name, values), color in zip(bytes_by_name.items(), colors(), strict=False):
            numbers = np.arange(len(values))
            axis.fill_between(numbers, values / 2**20, step="mid", color=color, alpha=0.25)
            handles += axis.step(numbers, values / 2**20, where="mid", color=color, linewidth=1)
            labels.append(f"{name} ({values.max() / 2**20:,.0f})")
        handles.append(axis.axvline(backward_from, color=FOREGROUND, linestyle=":", linewidth=1))
        labels.append("backward begins")
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            handles.append(axis.axhline(budget, color=FOREGROUND, linestyle="--", linewidth=1.2))
            labels.append(f"budget {budget:,.0f}")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, max(len(values) for values in bytes_by_name.values()) - 1)
        legend(axis, handles, labels)
    return drawing.getvalue()


def budget_curve(
    budgets_bytes: Sequence[int], overheads: Sequence[float], budget_bytes: int | None = None
) -> bytes:
    """Time that recomputation adds by budget, SVG, with a line at the one chosen."""
    with axes("budget, MiB", "added time, %") as (axis, drawing):
        mebibytes = [size / 2**20 for size in budgets_bytes]
        axis.plot(mebibytes, [100 * share for share in overheads], color=COLORS[0], marker="o")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        if budget_bytes is not None:
            budget = budget_bytes / 2**20
            line = axis.axvline(budget, color=FOREGROUND, linestyle="--", linewidth=1.2)
            legend(axis, [line], [f"budget {budget:,.1f}"])
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


def stacked_memory(
    parts_bytes: Mapping[str, np.ndarray],
    *,
    constant_bytes: int,
    backward_from: int,
    limit_bytes: int,
) -> bytes:
    """Memory while each layer of a step works, SVG, one part on the other, and a limit.

    Args:
        parts_bytes: one array [moments] each, from the lowest up.
        constant_bytes: of something that is there all along, lowest of all.
        backward_from: number of the first moment of backward.
    """
    gibi = 2.0**30
    with axes("layer, forward then backward", "GiB") as (axis, drawing):
        moments = np.arange(len(next(iter(parts_bytes.values()))))
        lower = np.full(len(moments), constant_bytes / gibi)
        handles, labels = [], []
        for (name, values), color in zip(parts_bytes.items(), colors(), strict=False):
            upper = lower + values / gibi
            handles.append(
                axis.fill_between(moments, lower, upper, step="mid", color=color, alpha=0.75)
            )
            labels.append(name)
            lower = upper
        handles.append(axis.axvline(backward_from, color=FOREGROUND, linestyle=":", linewidth=1))
        labels.append("the loss")
        handles.append(
            axis.axhline(limit_bytes / gibi, color=FOREGROUND, linestyle="--", linewidth=1.2)
        )
        labels.append(f"memory {limit_bytes / gibi:,.2f}")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, max(1, len(moments) - 1))
        legend(axis, handles, labels)
    return drawing.getvalue()
