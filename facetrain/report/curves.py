"""Curves of an evaluation: ROC, DET, score histograms, CMC, detection and identification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import Roc
from facetrain.evaluation.open_set import OpenSetResult
from facetrain.report.drawing import COLORS, FOREGROUND, axes, colors, legend
from facetrain.report.tables import far_text

_NUM_POINTS = 400
_NUM_BINS = 80


def sampled(roc: Roc) -> tuple[np.ndarray, np.ndarray]:
    """FAR and TAR float64 [points], from one impostor pair to 1, at even steps of log FAR."""
    far = np.geomspace(1.0 / roc.num_impostor, 1.0, _NUM_POINTS)
    # The honest rule at every point: the largest TAR whose FAR is at most this one.
    return far, roc.tar[np.searchsorted(roc.far, far * (1.0 + 1e-12), side="right") - 1]


def roc_curves(systems: Mapping[str, Roc]) -> bytes:
    """TAR over FAR with a logarithmic FAR axis, SVG; a curve begins at one impostor pair.

    Raises:
        FacetrainError: no system given.
    """
    with _over_far(systems, "TAR") as (axis, drawing):
        lines = [
            line
            for roc, color in zip(systems.values(), colors(), strict=False)
            for line in axis.plot(*sampled(roc), color=color)
        ]
        axis.set_ylim(-0.02, 1.02)
        legend(axis, lines, list(systems))
    return drawing.getvalue()


def det_curves(systems: Mapping[str, Roc]) -> bytes:
    """DET: the share of genuine pairs missed over FAR, both logarithmic, SVG.

    A curve ends where fewer than one pair is missed.

    Raises:
        FacetrainError: no system given.
    """
    with _over_far(systems, "missed (1 - TAR)") as (axis, drawing):
        lines = []
        for roc, color in zip(systems.values(), colors(), strict=False):
            far, tar = sampled(roc)
            lines += axis.plot(far, np.where(tar < 1.0, 1.0 - tar, np.nan), color=color)
        axis.set_yscale("log")
        axis.set_ylim(0.8 * min(1.0 / roc.num_genuine for roc in systems.values()), 1.1)
        axis.yaxis.set_major_formatter(lambda value, _: far_text(value))
        axis.minorticks_off()
        legend(axis, lines, list(systems))
    return drawing.getvalue()


@contextmanager
def _over_far(systems: Mapping[str, Roc], y_label: str) -> Iterator[tuple[Any, Any]]:
    if not systems:
        raise FacetrainError(f"plot of {y_label} over FAR: no system given")
    with axes("FAR", y_label) as (axis, drawing):
        yield axis, drawing
        _log_far(axis, min(1.0 / roc.num_impostor for roc in systems.values()))


def _log_far(axis: Any, lowest: float) -> None:
    axis.set_xscale("log")
    axis.set_xlim(lowest, 1.0 if lowest < 1.0 else 10.0)
    axis.xaxis.set_major_formatter(lambda value, _: far_text(value))
    axis.minorticks_off()


def score_histogram(
    genuine: np.ndarray, impostor: np.ndarray, threshold: float | None = None
) -> bytes:
    """Share of genuine and of impostor pairs per score, SVG, with a threshold if one is given."""
    low = float(min(genuine.min(), impostor.min()))
    high = float(max(genuine.max(), impostor.max()))
    edges = np.linspace(low, high if high > low else low + 1.0, _NUM_BINS + 1)
    return _stairs(
        np.histogram(genuine, edges)[0], np.histogram(impostor, edges)[0], edges, threshold
    )


def count_histogram(
    genuine: np.ndarray, impostor: np.ndarray, threshold: float | None = None
) -> bytes:
    """The same from pairs counted in fine cells over the cosines -1 .. 1."""
    used = np.flatnonzero(genuine + impostor)
    first, last = int(used[0]), int(used[-1]) + 1
    cells = np.unique(np.linspace(first, last, _NUM_BINS + 1).astype(np.int64))
    edges = cells * (2.0 / len(genuine)) - 1.0
    coarse = [np.add.reduceat(kind[:last], cells[:-1]) for kind in (genuine, impostor)]
    return _stairs(coarse[0], coarse[1], edges, threshold)


def _stairs(
    genuine: np.ndarray, impostor: np.ndarray, edges: np.ndarray, threshold: float | None
) -> bytes:
    with axes("cosine", "share of pairs") as (axis, drawing):
        handles = []
        for counts, color in ((impostor, COLORS[1]), (genuine, COLORS[0])):
            shares = counts / counts.sum()
            handles.append(axis.stairs(shares, edges, fill=True, color=color, alpha=0.55))
        labels = [f"impostor ({impostor.sum():,})", f"genuine ({genuine.sum():,})"]
        if threshold is not None:
            handles.append(axis.axvline(threshold, color=FOREGROUND, linestyle="--", linewidth=1))
            labels.append(f"threshold {threshold:.3f}")
        legend(axis, handles, labels)
        axis.set_ylim(bottom=0.0)
    return drawing.getvalue()


def cmc_curves(systems: Mapping[str, np.ndarray]) -> bytes:
    """CMC: the share of mated probes found within each rank, SVG.

    Args:
        systems: by name, float64 [ranks].
    """
    lowest = min(float(shares.min()) for shares in systems.values())
    with axes("rank", "found") as (axis, drawing):
        lines = []
        for shares, color in zip(systems.values(), colors(), strict=False):
            ranks = np.arange(1, len(shares) + 1)
            style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3}
            lines += axis.plot(ranks, shares, clip_on=False, **style)  # whole marks at 1
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(max(0.0, lowest - 0.1 * max(1.0 - lowest, 0.1)), 1.0)
        legend(axis, lines, list(systems))
    return drawing.getvalue()


def dir_curves(systems: Mapping[str, OpenSetResult]) -> bytes:
    """Open set: the share of mated probes found first and accepted, over FAR, SVG.

    Raises:
        FacetrainError: a system without unmated probes, or no system.
    """
    if not systems or not all(len(result.unmated) for result in systems.values()):
        raise FacetrainError("DIR plot: no probes who are not enrolled")
    with axes("FAR (unmated probes who find anyone)", "DIR") as (axis, drawing):
        lines = []
        for result, color in zip(systems.values(), colors(), strict=False):
            far = np.geomspace(1.0 / len(result.unmated), 1.0, _NUM_POINTS)
            rates = [result.dir_at(min(1.0, value * (1.0 + 1e-12))).tar for value in far]
            lines += axis.plot(far, rates, color=color)
        _log_far(axis, min(1.0 / len(result.unmated) for result in systems.values()))
        axis.set_ylim(-0.02, 1.02)
        legend(axis, lines, list(systems))
    return drawing.getvalue()
