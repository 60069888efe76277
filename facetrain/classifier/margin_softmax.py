"""Margin softmax over classes that are cut over ranks: losses and gradients without whole logits.

Two sweeps over tiles of classes (tiles.py), for each chunk of rows:

    sums        cosines to the tile's centers, margins, exponentials, added up per row;
                then one small all-reduce: the losses
    gradients   d loss / d cosine, and from it at once the tile's part of the features' gradient
                and the gradient of the tile's centers, which a sink takes (and may step at once)

In between, a schedule keeps the exponentials (row chunks) or makes them again (class tiles). The
targets' cosines are made apart (row_targets.py), and set into the tiles: with m' the margin's
slope,

    d loss / d cosine_kn = factor_n * term'_kn            (softmax: s p_kn)
    d loss / d cosine_yn = factor_n * target'_n * m'_n    (softmax: s (p_yn - 1) m'_n)

Shapes: N rows of the global batch, n of a chunk, m with their target on this rank; k classes of a
tile; D embedding. Tiles are class-major, [k, n].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from facetrain.classifier.active_centers import ActiveCenters
from facetrain.classifier.center_gradient import CenterSink
from facetrain.classifier.products import Products
from facetrain.classifier.row_losses import RowResults, row_loss_for
from facetrain.classifier.row_targets import ChunkTargets, HeadOptions, Rows, RowTargets
from facetrain.classifier.schedule import Schedule
from facetrain.classifier.tiles import RowFactors, Tile, Tiles
from facetrain.distributed import Communicator
from facetrain.margins import Margin

# Derivatives are scaled to end below this: fp16 holds nothing above 65504, nor below 6e-8.
_LARGEST_IN_FP16 = 2.0**14
# CurricularFace's slope of other classes is t + 2 cos.
_STEEPEST_OF_OTHERS = 3.0


@dataclass(frozen=True)
class Chunk:
    """A chunk of rows between its two sweeps; `kept` is empty where tiles are made again."""

    targets: ChunkTargets
    shift: float | Tensor
    results: RowResults
    kept: list[Tile]


class MarginSoftmax:
    """One step's losses and gradients over the classes of this rank.

    Collectives: one all-reduce of 2 floats a row per chunk; one of 1 float a row before it where
    the margin shapes other classes.

    Args:
        rows: the same on every rank, but for `places_n`.
        schedule: with the same chunks on every rank.
        training: the margin's statistics are brought up to date.
        with_gradients: `gradients` is to be called.
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
        with_gradients: bool,
    ) -> None:
        self._rows = rows
        self._active = active
        self._scale = options.scale
        self._schedule = schedule
        self._products = products
        self._communicator = communicator
        self._targets = RowTargets(
            rows,
            active,
            margin,
            options,
            communicator,
            schedule.tile_classes,
            training=training,
            with_slopes=with_gradients,
        )
        self._row_loss = row_loss_for(margin, options.scale)
        self._tiles = Tiles(
            rows,
            active,
            margin,
            options,
            products,
            self._row_loss,
            schedule.tile_classes,
            self._targets.all_margin_cosines_n,
        )

    # --- losses ----------------------------------------------------------------------------------

    def chunks(self) -> list[slice]:
        """Chunks of rows; at least one, which may be empty."""
        num_rows, step = len(self._rows.unit_nd), self._schedule.chunk_rows
        return [slice(n, min(n + step, num_rows)) for n in range(0, max(1, num_rows), step)]

    def tiles(self) -> Iterator[slice]:
        """Slices of the classes in use."""
        return iter(self._tiles)

    def losses(self, chunk: slice, *, keep: bool) -> Chunk:
        """First sweep; `keep` what the second needs, if the schedule does."""
        row_loss, targets = self._row_loss, self._targets.of(chunk)
        keep = keep and self._schedule.keeps_logits
        shift: float | Tensor = row_loss.shift
        kept, totals = self._sums(targets, shift, keep=keep)
        if row_loss.lost_digits(totals, shift):
            kept.clear()
            shift = self._largest_logits(targets)
            kept, totals = self._sums(targets, shift, keep=keep)
        results = row_loss.finish(totals, shift, targets.rows_m, targets.margin_cosines_m)
        return Chunk(targets, shift, results, kept)

    def _sums(
        self, targets: ChunkTargets, shift: float | Tensor, *, keep: bool
    ) -> tuple[list[Tile], Tensor]:
        """Terms of all classes, added up over all ranks, [2, n]."""
        kept: list[Tile] = []
        if keep:
            kept, totals = self._tiles.kept(targets, shift)
        else:
            totals = self._tiles.sums(targets, shift)
        totals[:, targets.rows_m] += self._row_loss.target_terms(targets.margin_cosines_m)
        return kept, self._communicator.all_reduce(totals)

    def _largest_logits(self, targets: ChunkTargets) -> Tensor:
        """Largest logit of each row over all ranks' classes, [n]."""
        largest = self._tiles.largest_cosines(targets)
        rows_m = targets.rows_m
        largest[rows_m] = torch.maximum(largest[rows_m], targets.margin_cosines_m)
        return self._communicator.all_reduce(largest, "max").mul_(self._scale)

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
        results, targets = chunk.results, chunk.targets
        factors_n = results.factors * weight
        size = self._rows.unit_nd.shape[1]
        unit_gradient = feature_gradient[targets.chunk, :size]
        if targets.norm_slopes_m is not None:
            feature_gradient[targets.chunk, size][targets.rows_m] = (
                results.target_derivatives * targets.norm_slopes_m * factors_n[targets.rows_m]
            )
        target_values_m = results.target_derivatives * targets.slopes_m
        scale = 1.0
        if products.dtype == torch.float16:
            scale = self._fp16_scale(factors_n[targets.rows_m] * target_values_m, weight)
        factors = RowFactors(factors_n * scale, target_values_m)
        features = self._tiles.features[targets.chunk]
        buffer = None if chunk.kept else self._tiles.buffer(targets)
        # Used again for each tile: fresh memory would be mapped, and cleared, each time.
        room = features.new_empty((2, self._tiles.most_centers, size), dtype=torch.float32)
        for number, tile in enumerate(self._tiles):
            centers = active.tile(tile)
            kept = chunk.kept[number] if chunk.kept else None
            left = self._tiles.derivatives(
                tile, centers, targets, chunk.shift, factors, kept, buffer
            )
            products.add_product(
                unit_gradient, left.T, self._tiles.factor(tile, centers), 1.0 / scale
            )
            if sink is not None:
                gradient, scratch = room[:, : len(centers)]
                products.multiply(left, features, out=gradient)
                inverse_norms_k = active.inverse_norms(tile, centers)
                if products.rounds:
                    gradient.mul_(inverse_norms_k[:, None] / scale)
                _remove_radial_part(gradient, centers, inverse_norms_k, scratch)
                sink.take(active.span(tile).start, active.tile_rows(tile), centers, gradient)

    def _fp16_scale(self, target_derivatives_m: Tensor, weight: float | Tensor) -> float:
        """A power of two by which this rank's derivatives use the range of fp16 and stay in it."""
        others = _STEEPEST_OF_OTHERS * self._row_loss.steepest * self._scale * abs(float(weight))
        largest = (
            max(others, float(target_derivatives_m.abs().amax()))
            if len(target_derivatives_m)
            else others
        )
        if not 0.0 < largest < math.inf:
            return 1.0
        return 2.0 ** math.floor(math.log2(_LARGEST_IN_FP16 / largest))


def _remove_radial_part(
    gradient_kd: Tensor, centers_kd: Tensor, inverse_norms_k: Tensor, scratch_kd: Tensor
) -> None:
    """Take the component along the center out of its gradient, in place: its length is free."""
    radial_k = torch.mul(gradient_kd, centers_kd, out=scratch_kd).sum(1)
    radial_k.mul_(inverse_norms_k.square())
    gradient_kd.addcmul_(centers_kd, radial_k[:, None], value=-1.0)
