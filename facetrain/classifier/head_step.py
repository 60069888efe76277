"""One forward and backward pass of the head: exchange of rows, losses, gradients to where they go.

Shapes: B rows of this rank, N of all ranks, D embedding, R rows of centers of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from facetrain.classifier.active_centers import ActiveCenters, inverse_norms
from facetrain.classifier.center_gradient import CenterGradient, CenterSink, StepAtOnce
from facetrain.classifier.margin_softmax import Chunk, MarginSoftmax
from facetrain.classifier.row_targets import Rows
from facetrain.errors import FacetrainError

if TYPE_CHECKING:
    from facetrain.classifier.sharded_classifier import ShardedClassifier

UNUSABLE = -(2**63)
"""Sent as label by a rank whose batch cannot be used, so that no other waits for it."""


@dataclass(frozen=True)
class StepInputs:
    """What a step is given besides embeddings.

    Attributes:
        labels: of this rank, int64 [B].
        counts: rows of each rank that shares the copy of the centers.
        num_rows: the loss is the sum over rows divided by it.
        training: draw classes, and bring the margin's statistics up to date.
        with_gradients: the loss may be differentiated.
    """

    labels: Tensor
    counts: list[int]
    num_rows: int
    training: bool
    with_gradients: bool


class ShardedLoss(torch.autograd.Function):
    """The head's loss as an autograd node of (embeddings, centers, *margin parameters)."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        centers: Tensor,
        head: ShardedClassifier,
        inputs: StepInputs,
        *margin_parameters: Tensor,
    ) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            ctx.step = HeadStep(head, embeddings, inputs)
        loss: Tensor = ctx.step.loss
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        step: HeadStep | None = ctx.step
        if step is None:
            raise FacetrainError(
                "the head's loss was differentiated twice, which would step its centers twice; "
                "call the head again instead"
            )
        ctx.step = None
        with torch.autocast(gradients[0].device.type, enabled=False):
            embeddings, centers, bias = step.backward(gradients[0], ctx.needs_input_grad[1])
        return embeddings, centers, None, None, *([] if bias is None else [bias])


class HeadStep:
    """A step between its forward and its backward pass.

    With one chunk of rows gradients are made in the backward pass, and centers may be stepped tile
    by tile. With more, each chunk's gradients are made in the forward pass while its logits exist.

    Attributes:
        loss: the same on every rank.
    """

    def __init__(self, head: ShardedClassifier, embeddings: Tensor, inputs: StepInputs) -> None:
        self._head = head
        self._inputs = inputs
        self._type = embeddings.dtype
        embeddings = embeddings.float()
        self._norms_b = torch.linalg.vector_norm(embeddings, dim=1)
        self._inverse_norms_b = inverse_norms(embeddings)[:, None]
        self._unit_bd = embeddings * self._inverse_norms_b
        head.margin.train(inputs.training)
        try:
            rows, classes = self._exchange()
        except FacetrainError:
            # The other copies' ranks, which do not see these labels, wait for this loss.
            self._over_copies(None)
            raise
        self._active = ActiveCenters(head.centers.detach(), classes, head.sub_centers)
        self._softmax = MarginSoftmax(
            rows,
            self._active,
            head.margin,
            head.options,
            head.schedule(len(rows.unit_nd)),
            head.products,
            head.inside,
            training=inputs.training,
            with_gradients=inputs.with_gradients,
        )
        self._feature_gradient = torch.empty(0)
        self._center_gradient: CenterGradient | None = None
        self._last: Chunk | None = None
        self._bias_gradient: Tensor | None = None
        self.loss = self._over_copies(self._forward(rows)) / inputs.num_rows
        self._versions = self._state_versions()

    def _state_versions(self) -> list[int]:
        """Numbers that change when what the backward pass reads again is changed in place."""
        margin = self._head.margin
        read = (self._head.centers, *margin.buffers(), *margin.parameters())
        return [tensor._version for tensor in read]

    def _exchange(self) -> tuple[Rows, Tensor | None]:
        """Rows of all ranks, and the local classes in use (None: all)."""
        head, counts = self._head, self._inputs.counts
        uses_norms, size = head.margin.uses_norms, self._unit_bd.shape[1]
        own = self._unit_bd
        if uses_norms:
            own = torch.cat([own, self._norms_b[:, None]], 1)
        received = head.inside.all_gather(own, counts)
        labels_n = head.inside.all_gather(self._inputs.labels, counts)
        first_rank = head.communicator.rank - head.inside.rank
        check_labels(labels_n, head.num_classes, counts, first_rank)
        num_local = head.class_counts[head.inside.rank]
        places_n = labels_n - head.first_class
        places_n = torch.where((places_n >= 0) & (places_n < num_local), places_n, -1)
        classes = None
        if head.sampler is not None and self._inputs.training:
            classes = head.sampler.draw(labels_n, head.first_class, num_local)
            head.sampler.step += 1
            places_n = torch.where(places_n >= 0, torch.searchsorted(classes, places_n), -1)
        if not uses_norms:
            return Rows(received, None, places_n), classes
        unit_nd, norms_n = received[:, :size].contiguous(), received[:, size].contiguous()
        return Rows(unit_nd, norms_n, places_n), classes

    def _forward(self, rows: Rows) -> Tensor:
        """Sum of the losses of all rows that share the copy."""
        chunks, with_gradients = self._softmax.chunks(), self._inputs.with_gradients
        if with_gradients:
            width = self._unit_bd.shape[1] + self._head.margin.uses_norms
            self._feature_gradient = rows.unit_nd.new_zeros((len(rows.unit_nd), width))
        if with_gradients and len(chunks) > 1:
            self._center_gradient = CenterGradient()
            self._center_gradient.begin(self._active.rows, self._head.centers.detach())
        total = rows.unit_nd.new_zeros(())
        for chunk in chunks:
            made = self._softmax.losses(chunk, keep=with_gradients)
            total = total + made.results.losses.sum()
            if made.results.bias is not None:
                bias, known = made.results.bias.sum(), self._bias_gradient
                self._bias_gradient = bias if known is None else known + bias
            if self._center_gradient is not None:
                self._softmax.gradients(made, 1.0, self._feature_gradient, self._center_gradient)
            elif with_gradients:
                self._last = made
        if rows.norms_n is not None:
            penalties = self._head.margin.penalty(rows.norms_n)
            total = total if penalties is None else total + penalties.detach().sum()
        return total

    def _over_copies(self, loss: Tensor | None) -> Tensor:
        """Sum of all copies' losses; one all-reduce of 8 bytes where there are copies.

        Args:
            loss: None where this copy's rows cannot be used.

        Raises:
            FacetrainError: another copy's rows cannot be used, and this one's can.
        """
        copies = self._head.copies
        both = torch.tensor([0.0, 1.0], device=copies.device)
        if loss is not None:
            if copies.world_size == 1:
                return loss
            both = torch.stack([loss, torch.zeros_like(loss)])
        copies.all_reduce(both)
        if loss is not None and bool(both[1]):
            raise FacetrainError(
                "a batch of a rank that shares another copy of the centers cannot be used, as its "
                "own message says"
            )
        return both[0]

    def backward(
        self, factor: Tensor, needs_centers: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of `factor` times the loss: of embeddings, centers and the margin's bias.

        That of the centers is returned only where the head has no optimizer of its own.

        Raises:
            FacetrainError: centers or the margin's statistics are no longer those of the loss.
        """
        if self._versions != self._state_versions():
            raise FacetrainError(
                "class centers or margin statistics changed between the head's loss and its "
                "backward pass (two losses before one backward pass, or a step in between); "
                "differentiate each loss before the next call of the head"
            )
        weight = factor / self._inputs.num_rows
        sink, gradient = self._sink() if needs_centers else (None, None)
        if self._last is not None:
            self._softmax.gradients(self._last, weight, self._feature_gradient, sink)
            self._last = None
        else:
            self._feature_gradient *= weight
            self._pass_on(weight, sink)
        if gradient is not None and gradient.values is not None:
            self._head.copies.all_reduce(gradient.values)
        bias = None if self._bias_gradient is None else self._bias_gradient * weight
        return self._embedding_gradient(weight), None if gradient is None else gradient.values, bias

    def _sink(self) -> tuple[CenterSink | None, CenterGradient | None]:
        """Where the centers' gradient goes, and it itself where autograd is to have it."""
        head, centers = self._head, self._head.centers.detach()
        if head.optimizer is None:
            gradient = CenterGradient()
            gradient.begin(self._active.rows, centers)
            return gradient, gradient
        # Known to all ranks alike. A center that took a step by NaN would never recover.
        if not self._inputs.training or not bool(torch.isfinite(self.loss)):
            return None, None
        if head.step_in_backward:
            return StepAtOnce(centers, head.optimizer), None
        head.gradient.begin(self._active.rows, centers)
        return head.gradient, None

    def _pass_on(self, weight: Tensor, sink: CenterSink | None) -> None:
        """Give a gradient that was added up over chunks to where it goes, tile by tile."""
        assert self._center_gradient is not None
        values = self._center_gradient.values
        self._center_gradient = None
        assert values is not None
        if sink is None:
            return
        for tile in self._softmax.tiles():
            span, rows = self._active.span(tile), self._active.tile_rows(tile)
            sink.take(span.start, rows, self._active.tile(tile), values[span].mul_(weight))

    def _embedding_gradient(self, weight: Tensor) -> Tensor:
        """Of this rank's embeddings, [B, D], through their division by their length."""
        head, unit_bd = self._head, self._unit_bd
        received = head.inside.reduce_scatter(self._feature_gradient, self._inputs.counts)
        size = unit_bd.shape[1]
        unit_gradient = received[:, :size]
        radial_b = torch.linalg.vecdot(unit_gradient, unit_bd)[:, None]
        gradient = (unit_gradient - radial_b * unit_bd) * self._inverse_norms_b
        if head.margin.uses_norms:
            norm_gradient = received[:, size]
            with torch.enable_grad():
                norms = self._norms_b.detach().requires_grad_()
                penalties = head.margin.penalty(norms)
                if penalties is not None:
                    (slopes,) = torch.autograd.grad(penalties.sum(), norms)
                    norm_gradient = norm_gradient + weight * slopes
            gradient += norm_gradient[:, None] * unit_bd
        return gradient.to(self._type)


def check_labels(
    labels_n: Tensor, num_classes: int, counts: Sequence[int], first_rank: int = 0
) -> None:
    """Whether all labels are classes. Ranks that see the same ones raise the same error.

    Args:
        counts: rows of each rank, from `first_rank` on.

    Raises:
        FacetrainError: names the first wrong row.
    """
    wrong = ((labels_n < 0) | (labels_n >= num_classes)).nonzero()
    if not len(wrong):
        return
    row = int(wrong[0])
    place = 0
    while row >= counts[place]:
        row -= counts[place]
        place += 1
    rank = first_rank + place
    label = int(labels_n[wrong[0]])
    if label == UNUSABLE:
        raise FacetrainError(f"rank {rank}'s batch cannot be used, as its own message says")
    raise FacetrainError(
        f"label {label} in row {row} of rank {rank}'s batch: "
        f"must be from 0 to {num_classes - 1}; number the identities without gaps"
    )
