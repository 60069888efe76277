"""The class centers of this rank that take part in a step, tile by tile.

Shapes: K classes in use on this rank, S centers a class, D embedding; centers of a class are
consecutive rows. A tile is a slice of the classes in use.
"""

from __future__ import annotations

import torch
from torch import Tensor


class ActiveCenters:
    """All centers of this rank, or those of some classes.

    Args:
        centers: all of this rank's, of any length, fp32 [R, D].
        classes: ascending local class numbers in use, int64 [K]; None = all.
        per_class: S.
    """

    def __init__(self, centers: Tensor, classes: Tensor | None, per_class: int) -> None:
        self.per_class = per_class
        self.num_classes = len(centers) // per_class if classes is None else len(classes)
        self.rows: Tensor | None = None
        """Row numbers in use, int64 [K S]; None = all."""
        if classes is not None:
            self.rows = classes
            if per_class > 1:
                within = torch.arange(per_class, device=classes.device)
                self.rows = (classes[:, None] * per_class + within).reshape(-1)
        self._centers = centers
        self._inverse_norms: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """K S."""
        return self.num_classes * self.per_class

    def span(self, tile: slice) -> slice:
        """The tile's center rows among those in use."""
        return slice(tile.start * self.per_class, tile.stop * self.per_class)

    def tile_rows(self, tile: slice) -> slice | Tensor:
        """The tile's rows among all centers."""
        span = self.span(tile)
        return span if self.rows is None else self.rows[span]

    def tile(self, tile: slice) -> Tensor:
        """The tile's centers, [k S, D]; a view where all classes are in use."""
        rows = self.tile_rows(tile)
        return (
            self._centers[rows] if isinstance(rows, slice) else self._centers.index_select(0, rows)
        )

    def inverse_norms(self, tile: slice, centers: Tensor) -> Tensor:
        """1 / length of the tile's centers, [k S]; computed at the first call of each step."""
        if self._inverse_norms is None:
            self._inverse_norms = centers.new_full((self.num_rows,), -1.0)
            self._known = 0
        span = self.span(tile)
        if span.stop > self._known:
            self._inverse_norms[span] = inverse_norms(centers)
            self._known = span.stop
        return self._inverse_norms[span]

    def targets(self, classes: Tensor, unit_md: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cosines of rows to their own class, [m], and which of its centers is nearest, [m].

        Args:
            classes: of each row, as its place among the classes in use, int64 [m].
            unit_md: features of length 1, [m, D].
        """
        first = classes * self.per_class
        best: Tensor | None = None
        winners = torch.zeros_like(classes) if self.per_class > 1 else None
        for number in range(self.per_class):
            places = first + number
            rows = places if self.rows is None else self.rows[places]
            centers = self._centers.index_select(0, rows)
            cosines = (centers * unit_md).sum(1).mul_(inverse_norms(centers))
            if best is None:
                best = cosines
                continue
            assert winners is not None
            winners.masked_fill_(cosines > best, number)
            best = torch.maximum(best, cosines)
        assert best is not None
        return best, winners


def inverse_norms(vectors: Tensor) -> Tensor:
    """1 / L2 norm of each row, [rows]; 0 for a row of zero length, which so gets no gradient."""
    norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float32)
    return norms.reciprocal_().masked_fill_(norms > 1e12, 0.0)
