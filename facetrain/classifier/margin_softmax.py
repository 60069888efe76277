"""Margin softmax over classes that are cut over ranks: losses and gradients without whole logits.

Two sweeps over tiles of classes, for each chunk of rows:

    sums        cosines to the tile's centers, margins, exponentials, added up per row;
                then one small all-reduce: the losses
    gradients   d loss / d cosine, and from it at once the tile's part of the features' gradient
                and the gradient of the tile's centers, which a sink takes (and may step at once)

In between, a schedule keeps the exponentials (row chunks) or makes them again (class tiles). The
targets' cosines are made apart, in fp32, and set into the tiles: with m' the margin's slope,

    d loss / d cosine_kn = factor_n * term'_kn            (softmax: s p_kn)
    d loss / d cosine_yn = factor_n * target'_n * m'_n    (softmax: s (p_yn - 1) m'_n)

Shapes: N rows of the global batch, n of a chunk, M with their target on this rank; K classes in
use on this rank, k of a tile, S centers a class; D embedding. Tiles are class-major, [k, n].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from facetrain.classifier.active_centers import ActiveCenters
from facetrain.classifier.center_gradient import CenterSink
from facetrain.classifier.products import Products
from facetrain.classifier.row_losses import RowResults, row_loss_for
from facetrain.classifier.schedule import Schedule
from facetrain.distributed import Communicator
from facetrain.margins import Margin, Targets

# fp16 holds nothing below 6e-8: probabilities are multiplied by this before a product.
_FP16_SCALE = 1024.0
_LARGEST_FP16 = 65504.0


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
class _Tile:
    """Derivatives of terms, [k, n]; with S > 1 which center of each class was the nearest."""

    terms_kn: Tensor
    winners_kn: Tensor | None


@dataclass(frozen=True)
class Chunk:
    """A chunk of rows between its two sweeps; `kept` is empty where tiles are made again."""

    rows: slice
    shift: float | Tensor
    results: RowResults
    kept: list[_Tile]


class MarginSoftmax:
    """One step's losses and gradients over the classes of this rank.

    Collectives: one all-reduce of 2 floats a row per chunk; one of 1 float a row before it where
    the margin shapes other classes.

    Args:
        rows: the same on every rank, but for `places_n`.
        schedule: with the same chunks on every rank.
        training: the margin's statistics are brought up to date.
    """

    def __init__(
        self,
        rows: Rows,
        active: ActiveCenters,
        margin: Margin,
        options: HeadOptions,
        schedule: Schedule,
        products: Products,
        communicator: Communicator,
        *,
        training: bool,
    ) -> None:
        self._rows = rows
        self._active = active
        self._margin = margin
        self._options = options
        self._schedule = schedule
        self._products = products
        self._communicator = communicator
        self._features = products.operand(rows.unit_nd)
        self._targets = _Targets(rows, active, margin, options, communicator, training)
        self._row_loss = row_loss_for(margin, options.scale)

    # --- losses ----------------------------------------------------------------------------------

    def chunks(self) -> list[slice]:
        """Chunks of rows; at least one, which may be empty."""
        num_rows, step = len(self._rows.unit_nd), self._schedule.chunk_rows
        return [slice(n, min(n + step, num_rows)) for n in range(0, max(1, num_rows), step)]

    def losses(self, chunk: slice, *, keep: bool) -> Chunk:
        """First sweep; `keep` what the second needs, if the schedule does."""
        row_loss, targets = self._row_loss, self._targets.of(chunk)
        keep = keep and self._schedule.keeps_logits
        shift: float | Tensor = row_loss.shift
        terms = row_loss.target_terms(targets.margin_cosines_m, shift)
        kept, totals = self._sums(chunk, shift, targets.rows_m, terms, keep=keep)
        if row_loss.lost_digits(totals):
            kept.clear()
            shift = self._largest_logits(chunk, targets.rows_m, targets.margin_cosines_m)
            terms = row_loss.target_terms(targets.margin_cosines_m, shift[targets.rows_m])
            kept, totals = self._sums(chunk, shift, targets.rows_m, terms, keep=keep)
        results = row_loss.finish(totals, shift, targets.rows_m, terms)
        return Chunk(chunk, shift, results, kept)

    def _sums(
        self,
        chunk: slice,
        shift: float | Tensor,
        rows_m: Tensor,
        target_terms_m: Tensor,
        *,
        keep: bool,
    ) -> tuple[list[_Tile], Tensor]:
        """Terms of all classes, added up over all ranks, [2, n]."""
        totals = target_terms_m.new_zeros((2, chunk.stop - chunk.start))
        totals[:, rows_m] = target_terms_m
        kept = []
        buffer: Tensor | None = None
        if not keep:
            buffer = self._tile_buffer(chunk)
        for tile in self.tiles():
            made, sums = self._terms(tile, chunk, shift, buffer)
            totals += sums
            if keep:
                kept.append(made)
        return kept, self._communicator.all_reduce(totals)

    def _largest_logits(self, chunk: slice, rows_m: Tensor, margin_cosines_m: Tensor) -> Tensor:
        """Largest logit of each row over all ranks' classes, [n]."""
        largest = margin_cosines_m.new_full((chunk.stop - chunk.start,), -torch.inf)
        largest[rows_m] = margin_cosines_m
        for tile in self.tiles():
            cosines, _, _ = self._cosines(tile, chunk, None)
            largest = torch.maximum(largest, cosines.amax(0))
        return self._communicator.all_reduce(largest, "max").mul_(self._options.scale)

    # --- gradients -------------------------------------------------------------------------------

    def gradients(
        self,
        chunk: Chunk,
        weight: float | Tensor,
        feature_gradient: Tensor,
        sink: CenterSink | None,
    ) -> None:
        """Second sweep: gradients of `weight` times the sum of the chunk's losses.

        Args:
            feature_gradient: gets the part that this rank's classes give to the unit features,
                and in a last column, if there, to the norms; [N, D] or [N, D + 1], zeros.
            sink: takes the centers' gradient; None where they get none.
        """
        active, products = self._active, self._products
        rows, results, targets = chunk.rows, chunk.results, self._targets.of(chunk.rows)
        factors_n = results.factors * weight
        target_slopes_m = results.target_derivatives * targets.slopes_m
        targets_n = factors_n.new_zeros(len(factors_n))
        targets_n[targets.rows_m] = target_slopes_m
        size = self._rows.unit_nd.shape[1]
        if targets.norm_slopes_m is not None:
            feature_gradient[rows, size][targets.rows_m] = (
                results.target_derivatives * targets.norm_slopes_m * factors_n[targets.rows_m]
            )
        features = self._features[rows]
        unit_gradient = feature_gradient[rows, :size]
        buffer = None if chunk.kept else self._tile_buffer(rows)
        for number, tile in enumerate(self.tiles()):
            if chunk.kept:
                made = chunk.kept[number]
            else:
                made, _ = self._terms(tile, rows, chunk.shift, buffer)
            terms = made.terms_kn
            _put(terms, targets.places_n - tile.start, targets_n)
            terms.mul_(factors_n)
            if made.winners_kn is not None:
                terms = self._to_centers(terms, made.winners_kn, tile, targets)
            centers = active.tile(tile)
            inverse_norms_k = active.inverse_norms(tile, centers)
            terms.mul_(inverse_norms_k[:, None])
            scale = 1.0
            if products.dtype == torch.float16:
                scale = _FP16_SCALE
                terms.mul_(scale).clamp_(-_LARGEST_FP16, _LARGEST_FP16)
            left = products.operand(terms)
            part = products.operand(centers)
            products.add_product(unit_gradient, left.T, part, 1.0 / scale)
            if sink is not None:
                gradient = products.multiply(left, features)
                if scale != 1.0:
                    gradient.div_(scale)
                _remove_radial_part(gradient, centers, inverse_norms_k)
                sink.take(active.span(tile).start, active.tile_rows(tile), gradient)

    def _to_centers(
        self, terms_kn: Tensor, winners_kn: Tensor, tile: slice, targets: _ChunkTargets
    ) -> Tensor:
        """Derivatives by class as derivatives by center: the nearest one's, [k S, n]."""
        assert targets.winners_n is not None
        _put(winners_kn, targets.places_n - tile.start, targets.winners_n)
        count, rows = terms_kn.shape
        by_center = terms_kn.new_zeros((count, self._active.per_class, rows))
        by_center.scatter_(1, winners_kn[:, None].long(), terms_kn[:, None])
        return by_center.view(-1, rows)

    # --- tiles -----------------------------------------------------------------------------------

    def tiles(self) -> Iterator[slice]:
        """Slices of the classes in use."""
        step, count = self._schedule.tile_classes, self._active.num_classes
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))

    def _tile_buffer(self, chunk: slice) -> Tensor:
        """Room for a tile's cosines, used again for each of them."""
        most = min(self._schedule.tile_classes, self._active.num_classes) * self._active.per_class
        return self._features.new_empty((most, chunk.stop - chunk.start), dtype=torch.float32)

    def _terms(
        self, tile: slice, chunk: slice, shift: float | Tensor, buffer: Tensor | None
    ) -> tuple[_Tile, Tensor]:
        """Derivatives of a tile's terms, without the targets, and the terms' sums, [2, n]."""
        cosines, slopes, winners = self._cosines(tile, chunk, buffer)
        sums = self._row_loss.terms_(cosines, shift)
        if slopes is not None:
            cosines.mul_(slopes)
        return _Tile(cosines, winners), sums

    def _cosines(
        self, tile: slice, chunk: slice, buffer: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Cosines [k, n] as the softmax sees them, -inf at the targets; slopes; nearest centers."""
        active, margin, threshold = self._active, self._margin, self._options.others_threshold
        centers = active.tile(tile)
        span = active.span(tile)
        cosines = self._products.multiply(
            self._products.operand(centers),
            self._features[chunk].T,
            None if buffer is None else buffer[: span.stop - span.start],
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
            targets_n = self._targets.all_margin_cosines_n
            assert targets_n is not None
            slopes = margin.shape_others(cosines, targets_n[chunk])
        if above is not None:
            slopes = torch.ones_like(cosines) if slopes is None else slopes
            slopes.masked_fill_(above, 0.0)
        places_n = self._rows.places_n[chunk] - tile.start
        _put(cosines, places_n, cosines.new_full(places_n.shape, -torch.inf))
        return cosines, slopes, winners


@dataclass(frozen=True)
class _ChunkTargets:
    """Targets of a chunk, m of them on this rank.

    Attributes:
        rows_m: numbers in the chunk.
        places_n: of all rows of the chunk, -1 elsewhere.
        winners_n: the nearest center of the target class, uint8 [n]; None with one a class.
    """

    rows_m: Tensor
    places_n: Tensor
    margin_cosines_m: Tensor
    slopes_m: Tensor
    norm_slopes_m: Tensor | None
    winners_n: Tensor | None


class _Targets:
    """Margin cosines of the rows whose class is on this rank, and their slopes.

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
        training: bool,
    ) -> None:
        num_rows = len(rows.places_n)
        here = (rows.places_n >= 0).nonzero().squeeze(1)
        cosines, winners = active.targets(rows.places_n[here], rows.unit_nd[here])
        everywhere: Tensor | None = None
        if margin.shapes_others:
            everywhere = cosines.new_zeros(num_rows)
            everywhere[here] = cosines
            communicator.all_reduce(everywhere)
        if training:
            margin.observe(rows.norms_n, everywhere)
            margin.draw(num_rows)

        norms = None if rows.norms_n is None else rows.norms_n[here]
        with torch.enable_grad():
            inputs = [cosines.requires_grad_()]
            if norms is not None:
                inputs.append(norms.requires_grad_())
            shaped = margin(Targets(cosines, here, norms))
            slopes = torch.autograd.grad(shaped.sum(), inputs, allow_unused=True)
        self.all_margin_cosines_n: Tensor | None = None
        if everywhere is not None:
            numbers = torch.arange(num_rows, device=here.device)
            self.all_margin_cosines_n = margin(Targets(everywhere, numbers, rows.norms_n)).detach()
        self._rows = here
        self._places_n = rows.places_n
        self._margin_cosines = shaped.detach()
        self._slopes = slopes[0] if options.through_margin else torch.ones_like(cosines)
        self._norm_slopes: Tensor | None = None
        if norms is not None and options.through_margin:
            self._norm_slopes = slopes[1]
        self._winners_n: Tensor | None = None
        if winners is not None:
            self._winners_n = torch.zeros(num_rows, dtype=torch.uint8, device=here.device)
            self._winners_n[here] = winners.to(torch.uint8)

    def of(self, chunk: slice) -> _ChunkTargets:
        chosen: slice | Tensor = slice(None)
        if chunk.stop - chunk.start < len(self._places_n):
            chosen = (self._rows >= chunk.start) & (self._rows < chunk.stop)
        return _ChunkTargets(
            rows_m=self._rows[chosen] - chunk.start,
            places_n=self._places_n[chunk],
            margin_cosines_m=self._margin_cosines[chosen],
            slopes_m=self._slopes[chosen],
            norm_slopes_m=None if self._norm_slopes is None else self._norm_slopes[chosen],
            winners_n=None if self._winners_n is None else self._winners_n[chunk],
        )


def _put(tile_kn: Tensor, places_n: Tensor, values_n: Tensor) -> None:
    """Set entry (places_n[n], n) to values_n[n] for each n whose place is in the tile, in place.

    Without asking which: on a GPU that would wait for it.
    """
    inside = (places_n >= 0) & (places_n < len(tile_kn))
    index = places_n.clamp(0, len(tile_kn) - 1)[None]
    values = torch.where(inside[None], values_n[None], tile_kn.gather(0, index))
    tile_kn.scatter_(0, index, values)


def _remove_radial_part(gradient_kd: Tensor, centers_kd: Tensor, inverse_norms_k: Tensor) -> None:
    """Take the component along the center out of its gradient, in place: its length is free."""
    radial_k = torch.linalg.vecdot(gradient_kd, centers_kd) * inverse_norms_k.square()
    gradient_kd.addcmul_(centers_kd, radial_k[:, None], value=-1.0)
