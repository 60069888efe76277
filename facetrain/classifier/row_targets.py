"""The rows of a step and what is known of their targets before any tile is made.

The targets' cosines are made apart from the tiles, in fp32, with the margin and its slope.

Shapes: N rows of the global batch, n of a chunk, M (m) with their target on this rank; K classes
in use on this rank; D embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from facetrain.classifier.active_centers import ActiveCenters
from facetrain.distributed import Communicator
from facetrain.margins import Margin, Targets


@dataclass(frozen=True)
class HeadOptions:
    """What the loss is, beside its margin.

    Attributes:
        scale: s.
        through_margin: gradients pass the margin's slope; otherwise the margin counts as constant.
        others_threshold: cosines of other classes above it count as 0, without a gradient (likely
            the same person twice); None = never.
    """

    scale: float = 64.0
    through_margin: bool = True
    others_threshold: float | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of a global batch.

    Attributes:
        unit_nd: features of length 1 (or 0), fp32 [N, D].
        norms_n: their lengths before, [N]; None unless the margin uses them.
        places_n: the row's class among those in use on this rank, -1 elsewhere, int64 [N].
    """

    unit_nd: Tensor
    norms_n: Tensor | None
    places_n: Tensor


@dataclass(frozen=True)
class ChunkTargets:
    """Targets of a chunk, m of them on this rank, ordered by place.

    Attributes:
        chunk: its rows of the global batch.
        rows_m: numbers in the chunk.
        places_m: the class among those in use.
        winners_m: the nearest center of the target class, uint8; None with one a class.
        tile_classes: classes of a tile.
        edges: targets before the first tile, the second, and so on.
    """

    chunk: slice
    rows_m: Tensor
    places_m: Tensor
    margin_cosines_m: Tensor
    slopes_m: Tensor
    norm_slopes_m: Tensor | None
    winners_m: Tensor | None
    tile_classes: int
    edges: list[int]

    def put(self, tile: slice, tile_kn: Tensor, values: float | Tensor) -> None:
        """Set the entries of the tile's targets, in place, to one value or one of each [m]."""
        number = tile.start // self.tile_classes
        inside = slice(*self.edges[number : number + 2])
        if inside.start < inside.stop:
            entries = (self.places_m[inside] - tile.start, self.rows_m[inside])
            tile_kn[entries] = values[inside] if isinstance(values, Tensor) else values


class RowTargets:
    """Margin cosines of the rows whose class is on this rank, and their slopes.

    Args:
        tile_classes: classes of a tile.

    Attributes:
        all_margin_cosines_n: of every row, where the margin shapes other classes.
    """

    def __init__(
        self,
        rows: Rows,
        active: ActiveCenters,
        margin: Margin,
        options: HeadOptions,
        communicator: Communicator,
        tile_classes: int,
        *,
        training: bool,
        with_slopes: bool,
    ) -> None:
        num_rows = len(rows.places_n)
        here = (rows.places_n >= 0).nonzero().squeeze(1)
        places, order = rows.places_n[here].sort(stable=True)
        here = here[order]
        cosines, winners = active.targets(places, rows.unit_nd[here])
        everywhere: Tensor | None = None
        if margin.shapes_others:
            everywhere = cosines.new_zeros(num_rows)
            everywhere[here] = cosines
            communicator.all_reduce(everywhere)
        if training:
            margin.observe(rows.norms_n, everywhere)
            margin.draw(num_rows)

        norms = None if rows.norms_n is None else rows.norms_n[here]
        self._slopes = torch.ones_like(cosines)
        self._norm_slopes: Tensor | None = None
        if with_slopes and options.through_margin:
            with torch.enable_grad():
                inputs = [cosines.requires_grad_()]
                if norms is not None:
                    inputs.append(norms.requires_grad_())
                shaped = margin(Targets(cosines, here, norms))
                slopes = torch.autograd.grad(shaped.sum(), inputs, allow_unused=True)
            self._slopes = slopes[0]
            self._norm_slopes = None if norms is None else slopes[1]
        else:
            shaped = margin(Targets(cosines, here, norms))
        self.all_margin_cosines_n: Tensor | None = None
        if everywhere is not None:
            numbers = torch.arange(num_rows, device=here.device)
            self.all_margin_cosines_n = margin(Targets(everywhere, numbers, rows.norms_n)).detach()
        self._rows = here
        self._num_rows = num_rows
        self._places = places
        self._tile_classes = tile_classes
        self._tile_starts = torch.arange(
            0, active.num_classes + tile_classes, tile_classes, device=here.device
        )
        self._margin_cosines = shaped.detach()
        self._winners = None if winners is None else winners.to(torch.uint8)

    def of(self, chunk: slice) -> ChunkTargets:
        chosen: slice | Tensor = slice(None)
        if chunk.stop - chunk.start < self._num_rows:
            chosen = (self._rows >= chunk.start) & (self._rows < chunk.stop)
        places_m = self._places[chosen]
        return ChunkTargets(
            chunk=chunk,
            rows_m=self._rows[chosen] - chunk.start,
            places_m=places_m,
            margin_cosines_m=self._margin_cosines[chosen],
            slopes_m=self._slopes[chosen],
            norm_slopes_m=None if self._norm_slopes is None else self._norm_slopes[chosen],
            winners_m=None if self._winners is None else self._winners[chosen],
            tile_classes=self._tile_classes,
            edges=torch.searchsorted(places_m, self._tile_starts).tolist(),
        )
