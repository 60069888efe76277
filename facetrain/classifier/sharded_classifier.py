"""The classification layer: class centers cut over ranks by class, margin softmax on top.

Communication of one step, per rank: all-gather of features (N D) and of labels (N), one
all-reduce of 2 floats a row, reduce-scatter of feature gradients (N D). Nothing grows with the
number of classes.

Shapes: B rows of this rank, N of all ranks, D embedding, C classes, K classes of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from facetrain.classifier.margin_softmax import inverse_norms, margin_softmax
from facetrain.distributed import Communicator, even_counts, gather_counts
from facetrain.errors import FacetrainError
from facetrain.margins import Margin

_CHUNK_LOGITS_BYTES = 64 * 2**20
_ROWS_PER_SEED = 1024
_INITIAL_STD = 0.01


class ShardedClassifier(nn.Module):
    """Margin softmax cross-entropy over C classes, K of them on this rank.

    Equal to the dense computation for any world size: loss, gradients, and initial centers, which
    depend on `seed` and class only.

    Args:
        num_classes: C, over all ranks; ranks may get none where C is less than the world size.
        embedding_size: D.
        margin: applied to the target cosine.
        scale: s, of the cosines.
        chunk_rows: rows of the global batch whose logits exist at a time; 0 = as many as keep
            them under 64 MiB.
        product_dtype: of the matrix products.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin,
        communicator: Communicator,
        *,
        scale: float = 64.0,
        chunk_rows: int = 0,
        product_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise FacetrainError(f"num_classes {num_classes}: must be at least 1")
        self.num_classes = num_classes
        self.margin = margin
        self.scale = scale
        self.product_dtype = product_dtype
        self.communicator = communicator
        self.class_counts = even_counts(num_classes, communicator.world_size)
        self.first_class = sum(self.class_counts[: communicator.rank])
        self._chunk_rows = chunk_rows
        initial = _initial_rows(
            self.first_class, self.class_counts[communicator.rank], embedding_size, seed
        )
        self.centers = nn.Parameter(initial.to(communicator.device))

    @property
    def chunk_rows(self) -> int:
        """Rows whose logits exist at a time; the same on every rank."""
        if self._chunk_rows:
            return self._chunk_rows
        return max(1, _CHUNK_LOGITS_BYTES // (4 * max(self.class_counts)))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        counts: Sequence[int] | None = None,
        num_rows: int | None = None,
    ) -> Tensor:
        """Sum of the losses of all ranks' rows divided by `num_rows`; the same on every rank.

        Gradients of the result for this rank's embeddings are whole; the backbone's gradients
        are to be *summed* over ranks. They are computed here, not in backward.

        Args:
            embeddings: of this rank, not normalised, [B, D]; B may differ between ranks or be 0.
            labels: classes in [0, C), int64 [B].
            counts: rows of each rank; asked of the ranks when None.
            num_rows: divisor; default N. With gradient accumulation, the rows of all micro-batches.

        Raises:
            FacetrainError: a label is out of range; raised on every rank.
        """
        if counts is None:
            counts = gather_counts(self.communicator, len(embeddings))
        loss: Tensor = _ShardedLoss.apply(
            embeddings, self.centers, labels, self, list(counts), num_rows or max(1, sum(counts))
        )
        return loss

    def extra_repr(self) -> str:
        last = self.first_class + len(self.centers)
        return f"classes {self.first_class}..{last} of {self.num_classes}, scale {self.scale:g}"


class _ShardedLoss(torch.autograd.Function):
    """The loss as an autograd node whose gradients were made on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        centers: Tensor,
        labels: Tensor,
        head: ShardedClassifier,
        counts: list[int],
        num_rows: int,
    ) -> Tensor:
        communicator = head.communicator
        embeddings = embeddings.float()
        inverse_norms_b = inverse_norms(embeddings)[:, None]
        unit_bd = embeddings * inverse_norms_b
        unit_nd = communicator.all_gather(unit_bd, counts)
        labels_n = communicator.all_gather(labels, counts)
        _check_labels(labels_n, head.num_classes, counts)
        local = labels_n - head.first_class
        local = torch.where((local >= 0) & (local < len(centers)), local, -1)
        needs_gradients = any(ctx.needs_input_grad[:2])
        result = margin_softmax(
            unit_nd,
            centers,
            local,
            head.margin,
            head.scale,
            communicator,
            gradient_weight=1.0 / num_rows if needs_gradients else None,
            chunk_rows=head.chunk_rows,
            product_dtype=head.product_dtype,
        )
        if result.unit_features_nd is not None and result.centers_kd is not None:
            unit_gradient = communicator.reduce_scatter(result.unit_features_nd, counts)
            radial_b = (unit_gradient * unit_bd).sum(1, keepdim=True)
            embedding_gradient = (unit_gradient - radial_b * unit_bd) * inverse_norms_b
            ctx.save_for_backward(embedding_gradient, result.centers_kd)
        return result.loss_n.sum() / num_rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        embedding_gradient, center_gradient = ctx.saved_tensors
        factor = gradients[0]
        return embedding_gradient * factor, center_gradient * factor, None, None, None, None


def _check_labels(labels_n: Tensor, num_classes: int, counts: Sequence[int]) -> None:
    """Every rank sees all labels, so every rank raises the same error."""
    wrong = ((labels_n < 0) | (labels_n >= num_classes)).nonzero()
    if not len(wrong):
        return
    row = int(wrong[0])
    rank = 0
    while row >= counts[rank]:
        row -= counts[rank]
        rank += 1
    raise FacetrainError(
        f"label {int(labels_n[wrong[0]])} in row {row} of rank {rank}'s batch: "
        f"must be from 0 to {num_classes - 1}; number the identities without gaps"
    )


def _initial_rows(first: int, count: int, size: int, seed: int) -> Tensor:
    """Rows first..first + count of the initial centers, [count, size]; the same for any cut."""
    rows = torch.empty((count, size))
    done = 0
    while done < count:
        block, offset = divmod(first + done, _ROWS_PER_SEED)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
        drawn = torch.randn((_ROWS_PER_SEED, size), generator=generator).mul_(_INITIAL_STD)
        taken = min(_ROWS_PER_SEED - offset, count - done)
        rows[done : done + taken] = drawn[offset : offset + taken]
        done += taken
    return rows
