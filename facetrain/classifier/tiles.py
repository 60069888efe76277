"""Tiles of the logits: made in torch, or where it applies by the kernel of triton_tile.py.

A tile goes from cosines to what the margin makes of them, to terms and their sums per row, and in
the second sweep to derivatives, which are a factor of the gradients' products. The torch version
does all margins and losses on any device, and is what the kernel is compared with.

Shapes: N rows of the global batch, n of a chunk; K classes in use on this rank, k of a tile, S
centers a class; D embedding. Tiles are class-major, [k, n].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from facetrain.classifier.active_centers import ActiveCenters
from facetrain.classifier.products import Products
from facetrain.classifier.row_losses import RowLoss
from facetrain.classifier.row_targets import ChunkTargets, HeadOptions, Rows
from facetrain.classifier.triton_tile import Finish, tile_sums, unavailable
from facetrain.margins import Margin


@dataclass(frozen=True)
class Tile:
    """Derivatives of terms, [k, n]; with S > 1 which center of each class was the nearest."""

    terms_kn: Tensor
    winners_kn: Tensor | None


@dataclass(frozen=True)
class RowFactors:
    """What turns a chunk's terms into derivatives of the loss.

    Attributes:
        factors_n: of each row's terms, [n].
        target_values_m: the targets' derivatives over the factors, [m].
    """

    factors_n: Tensor
    target_values_m: Tensor


class Tiles:
    """The tiles of one step on this rank.

    Args:
        tile_classes: classes of a tile, at most.
        margin_cosines_n: of every row's target, [N], where the margin shapes other classes.

    Attributes:
        fused: whether the kernel is used.
    """

    def __init__(
        self,
        rows: Rows,
        active: ActiveCenters,
        margin: Margin,
        options: HeadOptions,
        products: Products,
        row_loss: RowLoss,
        tile_classes: int,
        margin_cosines_n: Tensor | None,
    ) -> None:
        self._rows = rows
        self._active = active
        self._margin = margin
        self._options = options
        self._products = products
        self._row_loss = row_loss
        self._tile_classes = tile_classes
        self._margin_cosines_n = margin_cosines_n
        # A copy where it is rounded: targets are made of the unrounded ones.
        self.features = products.operand(rows.unit_nd.clone() if products.rounds else rows.unit_nd)
        self.fused = _kernel_knows(margin, active) and unavailable(self.features.device) is None

    def __iter__(self) -> Iterator[slice]:
        """Slices of the classes in use."""
        for start in range(0, self._active.num_classes, self._tile_classes):
            yield slice(start, min(start + self._tile_classes, self._active.num_classes))

    def buffer(self, targets: ChunkTargets) -> Tensor:
        """Room for a tile, used again for each of them."""
        dtype = self.features.dtype if self.fused else torch.float32
        num_rows = len(self.features[targets.chunk])
        return self.features.new_empty((self.most_centers, num_rows), dtype=dtype)

    @property
    def most_centers(self) -> int:
        """Centers of the largest tile."""
        return min(self._tile_classes, self._active.num_classes) * self._active.per_class

    def factor(self, tile: slice, centers: Tensor) -> Tensor:
        """A tile's centers as a factor of products, [k S, D].

        In fp32 as they are: their lengths are cheaper to take out of the products. Otherwise of
        length 1 and then rounded: fp16 has no room for short ones.
        """
        if not self._products.rounds:
            return centers
        return self._products.operand(centers * self._active.inverse_norms(tile, centers)[:, None])

    # --- first sweep -----------------------------------------------------------------------------

    def sums(self, targets: ChunkTargets, shift: float | Tensor) -> Tensor:
        """Terms of all classes but the targets added up, [2, n]; nothing is kept."""
        totals = self._no_sums(targets)
        if self.fused:
            # The kernel needs no room for a tile: all classes are one, unless a tile is a copy.
            whole = [slice(0, self._active.num_classes)]
            for tile in whole if self._active.rows is None else self:
                totals[0] += self._launch(tile, self._active.tile(tile), targets.chunk, shift)
            return totals
        buffer = self.buffer(targets)
        for tile in self:
            self._terms(tile, self._active.tile(tile), targets, shift, buffer, totals)
        return totals

    def kept(self, targets: ChunkTargets, shift: float | Tensor) -> tuple[list[Tile], Tensor]:
        """Every tile, to be kept for `derivatives`, and the sums as of `sums`."""
        totals = self._no_sums(targets)
        rows = self._active.num_rows
        room = totals.new_empty((rows, totals.shape[1])) if self._active.per_class == 1 else None
        tiles = []
        for tile in self:
            centers = self._active.tile(tile)
            out = None if room is None else room[tile]
            if self.fused:
                assert out is not None
                totals[0] += self._launch(tile, centers, targets.chunk, shift, out)
                tiles.append(Tile(out, None))
            else:
                tiles.append(self._terms(tile, centers, targets, shift, out, totals))
        return tiles, totals

    def largest_cosines(self, targets: ChunkTargets) -> Tensor:
        """Of each row among this rank's classes but the target, as the softmax sees them, [n]."""
        largest = self._no_sums(targets)[0].fill_(-torch.inf)
        for tile in self:
            cosines, _, _ = self._cosines(tile, self._active.tile(tile), targets, None)
            torch.maximum(largest, cosines.amax(0), out=largest)
        return largest

    def _no_sums(self, targets: ChunkTargets) -> Tensor:
        return self._rows.unit_nd.new_zeros((2, len(self._rows.unit_nd[targets.chunk])))

    # --- second sweep ----------------------------------------------------------------------------

    def derivatives(
        self,
        tile: slice,
        centers: Tensor,
        targets: ChunkTargets,
        shift: float | Tensor,
        factors: RowFactors,
        kept: Tile | None,
        buffer: Tensor | None,
    ) -> Tensor:
        """Derivatives by the products of unit features and `factor`, as an operand, [k S, n].

        Args:
            centers: of the tile.
            kept: the tile, used up here; None: made again, in `buffer`.
        """
        if kept is None and self.fused:
            assert buffer is not None
            out = buffer[: tile.stop - tile.start]
            target_values_n = torch.zeros_like(factors.factors_n)
            target_values_n[targets.rows_m] = factors.target_values_m
            finish = Finish(factors.factors_n, target_values_n)
            self._launch(tile, centers, targets.chunk, shift, out, finish)
            return self._products.operand(out)
        if kept is None:
            kept = self._terms(tile, centers, targets, shift, buffer, None)
        terms = kept.terms_kn
        targets.put(tile, terms, factors.target_values_m)
        terms.mul_(factors.factors_n)
        if kept.winners_kn is not None:
            terms = self._to_centers(terms, kept.winners_kn, tile, targets)
        if not self._products.rounds:
            terms.mul_(self._active.inverse_norms(tile, centers)[:, None])
        return self._products.operand(terms)

    def _to_centers(
        self, terms_kn: Tensor, winners_kn: Tensor, tile: slice, targets: ChunkTargets
    ) -> Tensor:
        """Derivatives by class as derivatives by center: the nearest one's, [k S, n]."""
        assert targets.winners_m is not None
        targets.put(tile, winners_kn, targets.winners_m)
        count, rows = terms_kn.shape
        by_center = terms_kn.new_zeros((count, self._active.per_class, rows))
        by_center.scatter_(1, winners_kn[:, None].long(), terms_kn[:, None])
        return by_center.view(-1, rows)

    # --- by the kernel ---------------------------------------------------------------------------

    def _launch(
        self,
        tile: slice,
        centers: Tensor,
        chunk: slice,
        shift: float | Tensor,
        out: Tensor | None = None,
        finish: Finish | None = None,
    ) -> Tensor:
        """Sums of a tile's terms, [n]; its terms or derivatives in `out`."""
        curriculum = None
        if self._margin.curriculum is not None:
            assert self._margin_cosines_n is not None
            curriculum = (self._margin.curriculum, self._margin_cosines_n[chunk])
        inverse_norms_k = self._active.inverse_norms(tile, centers)
        if self._products.rounds and self.features.dtype == torch.float32:
            # Rounded on a CPU, for the interpreter, which would not do it.
            centers, inverse_norms_k = self.factor(tile, centers), torch.ones_like(inverse_norms_k)
        return tile_sums(
            centers,
            self.features[chunk],
            inverse_norms_k,
            self._rows.places_n[chunk] - tile.start,
            self._options.scale,
            shift,
            threshold=self._options.others_threshold,
            curriculum=curriculum,
            out=out,
            finish=finish,
        )

    # --- in torch --------------------------------------------------------------------------------

    def _terms(
        self,
        tile: slice,
        centers: Tensor,
        targets: ChunkTargets,
        shift: float | Tensor,
        buffer: Tensor | None,
        totals: Tensor | None,
    ) -> Tile:
        """Derivatives of a tile's terms, without the targets; the terms are added to `totals`."""
        cosines, slopes, winners = self._cosines(tile, centers, targets, buffer)
        self._row_loss.terms_(cosines, shift, totals)
        if slopes is not None:
            cosines.mul_(slopes)
        return Tile(cosines, winners)

    def _cosines(
        self, tile: slice, centers: Tensor, targets: ChunkTargets, buffer: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Cosines [k, n] as the softmax sees them, -inf at the targets; slopes; nearest centers."""
        active, margin, threshold = self._active, self._margin, self._options.others_threshold
        cosines = self._products.multiply(
            self.factor(tile, centers),
            self.features[targets.chunk].T,
            None if buffer is None else buffer[: len(centers)],
        )
        if not self._products.rounds:
            cosines.mul_(active.inverse_norms(tile, centers)[:, None])
        winners = None
        if active.per_class > 1:
            cosines, places = cosines.view(-1, active.per_class, cosines.shape[1]).max(1)
            winners = places.to(torch.uint8)
        above = None if threshold is None else cosines > threshold
        if above is not None:
            cosines.masked_fill_(above, 0.0)
        slopes = None
        if margin.shapes_others:
            assert self._margin_cosines_n is not None
            slopes = margin.shape_others(cosines, self._margin_cosines_n[targets.chunk])
        if above is not None:
            slopes = torch.ones_like(cosines) if slopes is None else slopes
            slopes.masked_fill_(above, 0.0)
        targets.put(tile, cosines, -torch.inf)
        return cosines, slopes, winners


def _kernel_knows(margin: Margin, active: ActiveCenters) -> bool:
    """Whether the kernel computes this margin's loss."""
    shapes = margin.shapes_others and margin.curriculum is None
    return active.per_class == 1 and margin.unified() is None and not shapes
