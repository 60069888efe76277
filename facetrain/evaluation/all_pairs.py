"""Every image against every other, streamed: TAR at FARs down to 1e-6 on any set of faces.

All genuine and all impostor pairs are scored, as in the MFR challenge (Deng et al., "Masked Face
Recognition Challenge: The InsightFace Track Report", 2021), and only counted: a histogram of 2**20
cells over the cosines -1 .. 1 for each kind. Counts are exact, so rates are exact at thresholds
that are edges of cells; these lie 1.9e-6 apart, where an fp32 cosine is off by 1e-7 or so.
Memory: embeddings, two histograms of 8 MiB and one block of scores, whatever the number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.extremes import Extremes, WorstPairs
from facetrain.evaluation.metrics import RateReport, Roc
from facetrain.evaluation.search.flat import full_fp32

FAR_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
NUM_CELLS = 1 << 20

_ROWS_PER_BLOCK, _COLUMNS_PER_BLOCK = 512, 8192


@dataclass(frozen=True, eq=False)
class AllPairsResult:
    """Outcome of comparing every image with every other.

    Attributes:
        num_images: M.
        num_identities: distinct labels.
        genuine: pairs of one identity per cell, int64 [cells], from cosine -1 to 1.
        impostor: pairs of two identities per cell.
        scores: the rates that follow.
        worst: pairs to look at, as rows.
        device: that scored them.
    """

    num_images: int
    num_identities: int
    genuine: np.ndarray
    impostor: np.ndarray
    scores: RateReport
    worst: WorstPairs
    device: str

    @property
    def resolution(self) -> float:
        """Distance of two thresholds, as a cosine."""
        return 2.0 / len(self.genuine)

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {
            "num_images": self.num_images,
            "num_identities": self.num_identities,
            "threshold_resolution": self.resolution,
            "device": self.device,
            **self.scores.to_dict(),
        }


def compare_all(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    far_targets: Sequence[float] = FAR_TARGETS,
    far_rule: str = "honest",
    num_cells: int = NUM_CELLS,
    num_worst: int = 12,
    device: str = "auto",
    progress: Callable[[int], None] | None = None,
) -> AllPairsResult:
    """Scores and counts every unordered pair of rows once.

    Args:
        embeddings: [M, D], of any length but zero.
        labels: identity of each, int [M].
        far_targets: FARs to report TAR at.
        far_rule: how, see `FAR_RULES`.
        num_cells: of the histograms.
        num_worst: false matches and misses to keep.
        device: "cpu", "cuda", or "auto".
        progress: called with the number of images that all others were compared with.

    Raises:
        FacetrainError: unusable embeddings, another number of labels, or pairs of one kind only.
    """
    labels = np.asarray(labels)
    unit = unit_embeddings(embeddings)
    if labels.shape != (len(unit),):
        raise FacetrainError(
            f"labels {list(labels.shape)}: expected one for {len(unit)} embeddings"
        )
    num_identities = len(np.unique(labels))
    if num_identities < 2 or num_identities == len(labels):
        raise FacetrainError(
            f"{len(labels)} images of {num_identities} identities: at least two identities and one "
            "with two images are needed"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Images of one identity side by side: its genuine pairs lie in one window of columns.
    order = np.argsort(labels, kind="stable")
    counts = _PairCounts(
        torch.from_numpy(unit[order]).to(device),
        torch.from_numpy(np.unique(labels[order], return_inverse=True)[1]).to(device),
        num_cells,
        num_worst,
    )
    with torch.inference_mode(), full_fp32():
        for start in range(0, len(unit), _ROWS_PER_BLOCK):
            counts.add_rows(start, min(start + _ROWS_PER_BLOCK, len(unit)))
            if progress is not None:
                progress(min(start + _ROWS_PER_BLOCK, len(unit)))
    genuine, impostor = counts.genuine.cpu().numpy(), counts.impostor.cpu().numpy()
    return AllPairsResult(
        num_images=len(unit),
        num_identities=num_identities,
        genuine=genuine,
        impostor=impostor,
        scores=RateReport.of_roc(roc_of_counts(genuine, impostor), far_targets, far_rule),
        worst=WorstPairs(
            *(
                [
                    pair._replace(left=int(order[pair.left]), right=int(order[pair.right]))
                    for pair in extremes.pairs()
                ]
                for extremes in (counts.highest, counts.lowest)
            )
        ),
        device=device,
    )


def roc_of_counts(genuine: np.ndarray, impostor: np.ndarray) -> Roc:
    """ROC curve from the pairs per cell of cosines -1 .. 1, exact at the edges of cells.

    Args:
        genuine: int64 [cells].
        impostor: int64 [cells].

    Raises:
        FacetrainError: no pair of one kind.
    """
    if genuine.sum() == 0 or impostor.sum() == 0:
        raise FacetrainError("pairs of one kind only; both kinds are needed")
    num_cells = len(genuine)
    # The curve bends only where a genuine pair is accepted: at both edges of its cell.
    cells = np.flatnonzero(genuine)
    edges = np.unique(np.concatenate([[0], cells, cells + 1, [num_cells]]))[::-1]
    thresholds = edges * (2.0 / num_cells) - 1.0
    # The last cell has cosines of 1 too, and roundings above it: none is accepted one cell higher.
    thresholds[0] = 1.0 + 2.0 / num_cells
    rates = []
    for counts in (impostor, genuine):
        below = np.append(0, np.cumsum(counts))
        rates.append((below[-1] - below[edges]) / below[-1])
    return Roc(thresholds, rates[0], rates[1], int(genuine.sum()), int(impostor.sum()))


class _PairCounts:
    """Histograms and extremes of the pairs seen so far.

    Args:
        unit: [M, D], images of one identity side by side.
        labels: [M], ascending.
        num_cells: of the histograms.
        num_worst: pairs to keep of each kind.
    """

    def __init__(self, unit: Tensor, labels: Tensor, num_cells: int, num_worst: int) -> None:
        self._unit, self._labels, self._num_cells = unit, labels, num_cells
        self.genuine, self.impostor = (
            torch.zeros(num_cells, dtype=torch.int64, device=unit.device) for _ in range(2)
        )
        self.highest = Extremes(num_worst, highest=True)
        self.lowest = Extremes(num_worst, highest=False)
        self._num_worst = num_worst

    def add_rows(self, start: int, stop: int) -> None:
        """Compares rows start .. stop - 1 with all later rows."""
        window = int(torch.searchsorted(self._labels, self._labels[stop - 1], right=True))
        for first in range(start, len(self._unit), _COLUMNS_PER_BLOCK):
            last = min(first + _COLUMNS_PER_BLOCK, len(self._unit))
            scores = self._unit[start:stop] @ self._unit[first:last].T
            if first < window:
                rows = torch.arange(start, stop, device=scores.device)[:, None]
                later = torch.arange(first, last, device=scores.device) > rows
                same = self._labels[start:stop, None] == self._labels[first:last]
                self._add(scores, later & same, start, first, same=True)
                self._add(scores, later & ~same, start, first, same=False)
            else:
                self._add(scores, None, start, first, same=False)

    def _add(
        self, scores: Tensor, chosen: Tensor | None, row: int, column: int, *, same: bool
    ) -> None:
        values = scores.flatten() if chosen is None else scores[chosen]
        if len(values) == 0:
            return
        cells = values.add(1.0).mul_(self._num_cells / 2).to(torch.int32)
        counts = torch.bincount(cells.clamp_(0, self._num_cells - 1), minlength=self._num_cells)
        (self.genuine if same else self.impostor).add_(counts)
        extremes = self.lowest if same else self.highest
        extreme = values.min() if same else values.max()
        bound = extremes.bound()
        if extreme >= bound if same else extreme <= bound:
            return
        best = values.topk(min(self._num_worst, len(values)), largest=not same).indices
        at = best if chosen is None else chosen.flatten().nonzero().squeeze(1)[best]
        width = scores.shape[1]
        extremes.add(
            values[best].cpu().numpy(),
            (row + at // width).cpu().numpy(),
            (column + at % width).cpu().numpy(),
        )
