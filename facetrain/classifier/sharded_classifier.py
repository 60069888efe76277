"""The classification layer: class centers cut over ranks by class, margin softmax on top.

Communication of one step, per rank: all-gather of features (N D) and of labels (N), one
all-reduce of 2 floats a row per chunk of rows, reduce-scatter of feature gradients (N D). Nothing
grows with the number of classes.

With `head_ranks` G below the world size, every G consecutive ranks hold one copy of the centers:
the above is of a group's ranks and rows, and the copies are kept equal by an all-reduce of the
centers' gradient (K S D) over the ranks with the same classes, and of 2 floats of the loss.

Shapes: B rows of this rank, N of all ranks that share a copy, D embedding, C classes, K classes of
this rank, S centers a class (consecutive rows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from facetrain.classifier.center_gradient import CenterGradient
from facetrain.classifier.center_optimizer import CenterOptimizer
from facetrain.classifier.head_step import UNUSABLE, ShardedLoss, StepInputs
from facetrain.classifier.products import Products
from facetrain.classifier.row_targets import HeadOptions
from facetrain.classifier.sampling import ClassSampler
from facetrain.classifier.schedule import Schedule, ScheduleWish, Work, choose_schedule
from facetrain.classifier.shards import fill_initial_rows
from facetrain.distributed import Communicator, even_counts, gather_counts
from facetrain.errors import FacetrainError
from facetrain.margins import Margin

DEFAULT_LIMIT_BYTES = 2 * 2**30
"""Transient memory within which the fastest schedule is chosen, unless told otherwise."""


class ShardedClassifier(nn.Module):
    """Margin softmax cross-entropy over C classes, K of them on this rank.

    Equal to the dense computation for any world size: loss, gradients, and initial centers, which
    depend on `seed` and class only.

    With an `optimizer` the head steps its centers itself: in the backward pass, tile by tile, so
    that their gradient never exists whole (`step_in_backward`), or in `step()`. Without one,
    `centers.grad` is made for an optimizer of yours.

    Args:
        num_classes: C, over all ranks; ranks may get none where C is less than the world size.
        embedding_size: D.
        margin: applied to the cosines.
        scale: s, of the cosines.
        sub_centers: S, centers a class; the nearest one counts (Deng et al., ECCV 2020).
        sample_rate: r, share of the classes in use in each step, in (0, 1].
        others_threshold: see `HeadOptions`.
        through_margin: see `HeadOptions`.
        optimizer: of the centers; needed where r < 1, since only rows in use are to be touched.
        step_in_backward: step centers as their gradient is made.
        schedule: what of the schedule is fixed; the rest is chosen, see schedule.py.
        limit_bytes: transient memory within which the fastest schedule is chosen; the same on
            every rank.
        product_dtype: of the matrix products: torch.float32, bfloat16 or float16.
        head_ranks: G, consecutive ranks that share one copy of the centers; 0 = all of them. With
            more copies than one the gradient exists whole, `step_in_backward` or not.

    Raises:
        FacetrainError: an argument out of range, or what copies cannot do.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin,
        communicator: Communicator,
        *,
        scale: float = 64.0,
        sub_centers: int = 1,
        sample_rate: float = 1.0,
        others_threshold: float | None = None,
        through_margin: bool = True,
        optimizer: CenterOptimizer | None = None,
        step_in_backward: bool = True,
        schedule: ScheduleWish | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        product_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        head_ranks: int = 0,
    ) -> None:
        super().__init__()
        _check("num_classes", num_classes, num_classes >= 1, "at least 1")
        _check("embedding_size", embedding_size, embedding_size >= 1, "at least 1")
        _check("scale", scale, 0 < scale < math.inf, "above 0")
        _check("sub_centers", sub_centers, 1 <= sub_centers <= 255, "from 1 to 255")
        _check("sample_rate", sample_rate, 0 < sample_rate <= 1, "above 0 and at most 1")
        threshold = others_threshold
        _check("others_threshold", threshold, threshold is None or 0 < threshold <= 1, "in (0, 1]")
        types = (torch.float32, torch.bfloat16, torch.float16)
        _check("product_dtype", product_dtype, product_dtype in types, "fp32, bf16 or fp16")
        for name, (low, high) in margin.ranges.items():
            value = getattr(margin, name)
            _check(f"margin's {name}", value, low <= value <= high, f"in [{low:g}, {high:g}]")
        if sample_rate < 1 and optimizer is None:
            raise FacetrainError(
                f"sample_rate {sample_rate:g} without an optimizer of the centers: a dense one "
                "would also move rows not in use; pass optimizer=CenterSGD(...) or CenterAdamW(...)"
            )
        group_size = head_ranks or communicator.world_size
        if group_size != communicator.world_size:
            _check_copies(group_size, communicator.world_size, margin, sample_rate)
        self.num_classes = num_classes
        self.sub_centers = sub_centers
        self.margin = margin.to(communicator.device)
        self.options = HeadOptions(scale, through_margin, others_threshold)
        self.optimizer = optimizer
        self.communicator = communicator
        self.inside, self.copies = communicator.split(group_size)
        self.step_in_backward = step_in_backward and self.copies.world_size == 1
        self.class_counts = even_counts(num_classes, self.inside.world_size)
        self.first_class = sum(self.class_counts[: self.inside.rank])
        self.sampler = ClassSampler(sample_rate, num_classes, seed) if sample_rate < 1 else None
        self.products = Products(product_dtype)
        self.schedule_wish = schedule or ScheduleWish()
        self._limit_bytes = limit_bytes
        self.gradient = CenterGradient()
        self._gradient_is_summed = False

        margin.initialise(num_classes, sample_rate)
        count = self.class_counts[self.inside.rank] * sub_centers
        centers = torch.empty((count, embedding_size))
        fill_initial_rows(centers, self.first_class * sub_centers, seed)
        self.centers = nn.Parameter(centers.to(communicator.device))
        if optimizer is not None:
            optimizer.attach(self.centers.detach())

    # --- the loss --------------------------------------------------------------------------------

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
        are to be *summed* over ranks. A loss that is not finite steps no center.

        Args:
            embeddings: of this rank, not normalised, [B, D]; B may differ between ranks or be 0.
            labels: classes in [0, C), int64 [B].
            counts: rows of each rank; asked of the ranks when None.
            num_rows: divisor; default N. With gradient accumulation, the rows of all micro-batches.

        Raises:
            FacetrainError: a label is out of range, or shapes do not agree; on every rank.
        """
        if counts is None:
            counts = gather_counts(self.communicator, len(embeddings))
        counts = list(counts)
        problem = self._batch_problem(embeddings, labels, counts)
        if problem is not None:
            # The others are told through the labels: none is left waiting.
            count = counts[self.communicator.rank]
            embeddings = self.centers.new_zeros((count, self.centers.shape[1]))
            labels = torch.full((count,), UNUSABLE, device=self.centers.device)
        inputs = StepInputs(
            labels,
            self._of_group(counts),
            num_rows or max(1, sum(counts)),
            training=self.training and torch.is_grad_enabled(),
            with_gradients=torch.is_grad_enabled(),
        )
        try:
            loss: Tensor = ShardedLoss.apply(
                embeddings, self.centers, self, inputs, *self.margin.parameters()
            )
        except FacetrainError:
            if problem is None:
                raise
        if problem is not None:
            raise FacetrainError(problem)
        return loss

    def _batch_problem(
        self, embeddings: Tensor, labels: Tensor, counts: Sequence[int]
    ) -> str | None:
        """Why this rank's batch cannot be used, or None."""
        rank, size = self.communicator.rank, self.centers.shape[1]
        shapes = f"embeddings {list(embeddings.shape)}, labels {list(labels.shape)}"
        wanted = f"[{counts[rank]}, {size}] and [{counts[rank]}]"
        if embeddings.shape != (counts[rank], size) or labels.shape != (counts[rank],):
            return f"rank {rank}'s batch: {shapes}; must be {wanted}"
        if labels.dtype != torch.int64:
            return f"rank {rank}'s batch: labels are {labels.dtype}; must be torch.int64"
        devices = {embeddings.device, labels.device}
        if devices != {self.centers.device}:
            found = " and ".join(sorted(map(str, devices)))
            return f"rank {rank}'s batch is on {found}; must be on {self.centers.device}"
        return None

    def _of_group(self, counts: list[int]) -> list[int]:
        """Those of `counts`, one of each rank, that are of the ranks sharing this copy."""
        first = self.communicator.rank - self.inside.rank
        return counts[first : first + self.inside.world_size]

    def most_rows(self, num_rows: int) -> int:
        """N, of `num_rows` rows cut evenly over all ranks: the most that share a copy."""
        return sum(even_counts(num_rows, self.communicator.world_size)[: self.inside.world_size])

    def schedule(self, num_rows: int) -> Schedule:
        """The way through the logits of N rows; the same on every rank that shares the copy."""
        most_classes = max(self.class_counts)
        if self.sampler is not None:
            most_classes = min(most_classes, round(most_classes * self.sampler.rate) + num_rows)
        work = Work(
            num_rows=num_rows,
            num_classes=most_classes,
            size=self.centers.shape[1],
            centers_per_class=self.sub_centers,
            sampled=self.sampler is not None,
            state_rows=0 if self.optimizer is None else self.optimizer.state_rows,
            shapes_others=self.margin.shapes_others,
            whole_gradient=self.optimizer is None or not self.step_in_backward,
            device_type=self.centers.device.type,
            product_dtype=self.products.dtype,
        )
        return choose_schedule(work, self._limit_bytes, self.schedule_wish)

    # --- the step, where it is not part of the backward pass -------------------------------------

    def step(self) -> None:
        """Step the centers by the gradients since the last step.

        Nothing is left to do where the backward pass has stepped them.
        """
        if self.optimizer is not None:
            self._sum_over_copies()
            self.gradient.step(self.centers.detach(), self.optimizer)
            self._gradient_is_summed = False

    def _sum_over_copies(self) -> None:
        """All rows' gradient in place of this group's; once between steps.

        One all-reduce of 4 K S D bytes over the copies.
        """
        if self.gradient.values is not None and not self._gradient_is_summed:
            self.copies.all_reduce(self.gradient.values)
            self._gradient_is_summed = True

    def drop_gradient(self) -> None:
        """Forget the gradients since the last step."""
        self.gradient.clear()
        self._gradient_is_summed = False

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradients since the last step to at most this L2 norm, of one copy.

        One all-reduce of 8 bytes, after that of the copies' gradients.

        Returns:
            The norm before; not finite where a gradient is not.

        Raises:
            FacetrainError: centers are stepped in the backward pass, before they could be clipped.
        """
        if self.optimizer is None or self.step_in_backward:
            raise FacetrainError(
                "the head has no gradient to clip: give it an optimizer and step_in_backward=False"
            )
        self._sum_over_copies()
        square = torch.tensor(
            [self.gradient.norm_square()], dtype=torch.float64, device=self.communicator.device
        )
        norm = self.inside.all_reduce(square).sqrt().item()
        if self.gradient.values is not None and norm > max_norm:
            self.gradient.values.mul_(max_norm / (norm + 1e-6))
        return norm

    # --- state, whatever the world size ----------------------------------------------------------

    @property
    def row_range(self) -> tuple[int, int]:
        """[first, end) of this rank's center rows among those of a copy."""
        first = self.first_class * self.sub_centers
        return first, first + len(self.centers)

    def rows_state(self) -> dict[str, Tensor]:
        """Tensors that are cut over ranks by rows of centers."""
        state = {} if self.optimizer is None else self.optimizer.state
        return {
            "centers": self.centers.detach(),
            **{f"centers/{name}": values for name, values in state.items()},
        }

    def common_state(self) -> dict[str, Any]:
        """What is equal on every rank: the margin's statistics and the sampler's step."""
        state: dict[str, Any] = {f"margin/{k}": v for k, v in self.margin.state_dict().items()}
        if self.sampler is not None:
            state["sampler_step"] = self.sampler.step
        return state

    def load_common_state(self, common: Mapping[str, Any]) -> None:
        """Take over `common_state`; tensors of `rows_state` are live, and written into.

        Raises:
            FacetrainError: the state of a head with another margin, or without sampling.
        """
        if missing := sorted(self.common_state().keys() - common.keys()):
            raise FacetrainError(
                f"state of another head: no {', '.join(missing)}; build this one with the same "
                "margin and sample rate"
            )
        margin = self.margin.state_dict()
        self.margin.load_state_dict({name: common[f"margin/{name}"] for name in margin})
        if self.sampler is not None:
            self.sampler.step = common["sampler_step"]

    def extra_repr(self) -> str:
        last = self.first_class + self.class_counts[self.inside.rank]
        return (
            f"classes {self.first_class}..{last} of {self.num_classes}, scale "
            f"{self.options.scale:g}"
        )


def _check_copies(group_size: int, world_size: int, margin: Margin, sample_rate: float) -> None:
    """Whether centers can be held in copies, each of which sees its own group's rows only."""
    flag = f"--head-ranks {group_size}"
    if group_size < 0 or world_size % group_size:
        raise FacetrainError(
            f"{flag}: must divide the number of processes, {world_size}; 0 = all of them"
        )
    if any(True for _ in (*margin.buffers(), *margin.parameters())):
        name = type(margin).__name__
        raise FacetrainError(
            f"{flag} of {world_size} processes: {name} has statistics or draws of the whole batch, "
            "which a group does not see; use --head-ranks 0, or another --margin"
        )
    if sample_rate < 1:
        raise FacetrainError(
            f"{flag} of {world_size} processes: with --sample-rate {sample_rate:g} copies would "
            "use different classes; use --head-ranks 0, or --sample-rate 1"
        )


def _check(name: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise FacetrainError(f"{name} {value}: must be {allowed}")
