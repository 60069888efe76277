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

_LARGEST_FP16 = 65504.0


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
        target_values_n: the targets' derivatives over the factors; any number elsewhere, [n].
        targets: of the chunk.
    """

    factors_n: Tensor
    target_values_n: Tensor
    targets: ChunkTargets


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
        self.features = products.operand(rows.unit_nd)
        self.fused = _kernel_knows(margin, active) and unavailable(self.features.device) is None

    def __iter__(self) -> Iterator[slice]:
        """Slices of the classes in use."""
        for start in range(0, self._active.num_classes, self._tile_classes):
            yield slice(start, min(start + self._tile_classes, self._active.num_classes))

    def buffer(self, chunk: slice) -> Tensor:
        """Room for a tile, used again for each of them."""
        dtype = self.features.dtype if self.fused else torch.float32
        return self.features.new_empty((self.most_centers, chunk.stop - chunk.start), dtype=dtype)

    @property
    def most_centers(self) -> int:
        """Centers of the largest tile."""
        return min(self._tile_classes, self._active.num_classes) * self._active.per_class

    # --- first sweep -----------------------------------------------------------------------------

    def sums(self, chunk: slice, shift: float | Tensor) -> Tensor:
        """Terms of all classes but the targets added up, [2, n]; nothing is kept."""
        totals = self._rows.unit_nd.new_zeros((2, chunk.stop - chunk.start))
        if self.fused:
            # The kernel needs no room for a tile: all classes are one, unless a tile is a copy.
            whole = [slice(0, self._active.num_classes)]
            for tile in whole if self._active.rows is None else self:
                totals[0] += self._launch(tile, self._active.tile(tile), chunk, shift)
            return totals
        buffer = self.buffer(chunk)
        for tile in self:
            totals += self._terms(tile, self._active.tile(tile), chunk, shift, buffer)[1]
        return totals

    def kept(self, chunk: slice, shift: float | Tensor) -> tuple[list[Tile], Tensor]:
        """Every tile, to be kept for `derivatives`, and the sums as of `sums`."""
        totals = self._rows.unit_nd.new_zeros((2, chunk.stop - chunk.start))
        tiles = []
        for tile in self:
            centers = self._active.tile(tile)
            if self.fused:
                out = totals.new_empty((tile.stop - tile.start, totals.shape[1]))
                totals[0] += self._launch(tile, centers, chunk, shift, out)
                tiles.append(Tile(out, None))
            else:
                made, sums = self._terms(tile, centers, chunk, shift, None)
                totals += sums
                tiles.append(made)
        return tiles, totals

    def largest_cosines(self, chunk: slice) -> Tensor:
        """Of each row among this rank's classes but the target, as the softmax sees them, [n]."""
        largest = self._rows.unit_nd.new_full((chunk.stop - chunk.start,), -torch.inf)
        for tile in self:
            cosines, _, _ = self._cosines(tile, self._active.tile(tile), chunk, None)
            largest = torch.maximum(largest, cosines.amax(0))
        return largest

    # --- second sweep ----------------------------------------------------------------------------

    def derivatives(
        self,
        tile: slice,
        centers: Tensor,
        chunk: slice,
        shift: float | Tensor,
        factors: RowFactors,
        kept: Tile | None,
        buffer: Tensor | None,
    ) -> Tensor:
        """Derivatives by the products of unit features and centers, as an operand, [k S, n].

        Args:
            centers: of the tile.
            kept: the tile, used up here; None: made again, in `buffer`.
        """
        fp16 = self._products.dtype == torch.float16
        if kept is None and self.fused:
            assert buffer is not None
            out = buffer[: tile.stop - tile.start]
            limit = _LARGEST_FP16 if fp16 else torch.inf
            finish = Finish(factors.factors_n, factors.target_values_n, limit)
            self._launch(tile, centers, chunk, shift, out, finish)
            return self._products.operand(out)
        if kept is None:
            kept, _ = self._terms(tile, centers, chunk, shift, buffer)
        terms = kept.terms_kn
        _put(terms, factors.targets.places_n - tile.start, factors.target_values_n)
        terms.mul_(factors.factors_n)
        if kept.winners_kn is not None:
            terms = self._to_centers(terms, kept.winners_kn, tile, factors.targets)
        terms.mul_(self._active.inverse_norms(tile, centers)[:, None])
        if fp16:
            terms.clamp_(-_LARGEST_FP16, _LARGEST_FP16)
        return self._products.operand(terms)

    def _to_centers(
        self, terms_kn: Tensor, winners_kn: Tensor, tile: slice, targets: ChunkTargets
    ) -> Tensor:
        """Derivatives by class as derivatives by center: the nearest one's, [k S, n]."""
        assert targets.winners_n is not None
        _put(winners_kn, targets.places_n - tile.start, targets.winners_n)
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
        # The kernel rounds centers itself where products are made of 16-bit features.
        rounds = self.features.dtype != torch.float32
        return tile_sums(
            centers if rounds else self._products.operand(centers),
            self.features[chunk],
            self._active.inverse_norms(tile, centers),
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
        chunk: slice,
        shift: float | Tensor,
        buffer: Tensor | None,
    ) -> tuple[Tile, Tensor]:
        """Derivatives of a tile's terms, without the targets, and the terms' sums, [2, n]."""
        cosines, slopes, winners = self._cosines(tile, centers, chunk, buffer)
        sums = self._row_loss.terms_(cosines, shift)
        if slopes is not None:
            cosines.mul_(slopes)
        return Tile(cosines, winners), sums

    def _cosines(
        self, tile: slice, centers: Tensor, chunk: slice, buffer: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Cosines [k, n] as the softmax sees them, -inf at the targets; slopes; nearest centers."""
        active, margin, threshold = self._active, self._margin, self._options.others_threshold
        cosines = self._products.multiply(
            self._products.operand(centers),
            self.features[chunk].T,
            None if buffer is None else buffer[: len(centers)],
        )
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
            slopes = margin.shape_others(cosines, self._margin_cosines_n[chunk])
        if above is not None:
            slopes = torch.ones_like(cosines) if slopes is None else slopes
            slopes.masked_fill_(above, 0.0)
        places_n = self._rows.places_n[chunk] - tile.start
        _put(cosines, places_n, cosines.new_full(places_n.shape, -torch.inf))
        return cosines, slopes, winners


def _kernel_knows(margin: Margin, active: ActiveCenters) -> bool:
    """Whether the kernel computes this margin's loss."""
    shapes = margin.shapes_others and margin.curriculum is None
    return active.per_class == 1 and not margin.unified and not shapes


def _put(tile_kn: Tensor, places_n: Tensor, values_n: Tensor) -> None:
    """Set entry (places_n[n], n) to values_n[n] for each n whose place is in the tile, in place.

    Without asking which: on a GPU that would wait for it.
    """
    inside = (places_n >= 0) & (places_n < len(tile_kn))
    index = places_n.clamp(0, len(tile_kn) - 1)[None]
    values = torch.where(inside[None], values_n[None], tile_kn.gather(0, index))
    tile_kn.scatter_(0, index, values)
