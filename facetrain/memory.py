"""Trains a backbone inside a memory budget, and measures what it took. All that knows memopt.

    manager = MemoryManager.fit(backbone, example_images, parse_bytes("256MiB"))
    with manager.measure():
        embeddings = manager.forward(images)
        loss(embeddings).backward()
    print(manager.report().describe())

The budget is the peak, in bytes of tensors, that the backbone's forward and backward pass may reach
above the resting state (weights, buffers, optimizer state, input batch); parameter gradients count.
The result of the step is the same to the bit as without a budget.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from facetrain.backbones import Backbone
from facetrain.errors import FacetrainError
from memopt import Budget, MemoptError, budget
from memopt.capture import CostTable, fake_copy
from memopt.capture.fake import fake_like
from memopt.errors import BudgetTooSmallError
from memopt.execute import find_splits
from memopt.live_bytes import LiveBytes
from memopt.plan import Plan, trace, with_costs
from memopt.units import format_bytes, parse_bytes

__all__ = [
    "MemoptError",
    "MemoryManager",
    "MemoryReport",
    "format_bytes",
    "parse_bytes",
    "peak_memory_bytes",
    "peak_rss_bytes",
    "time_operators",
]


@dataclass(frozen=True)
class MemoryReport:
    """What was asked, expected and measured; bytes above the resting state unless said otherwise.

    Attributes:
        budget_bytes: None without a budget; so are the next three.
        plain_peak_bytes: predicted peak with everything kept.
        predicted_peak_bytes: predicted peak under the plan.
        predicted_overhead: recompute time as a share of the backbone's plain step time.
        measured_peak_bytes: the largest counted in any `measure` region; None before the first.
        cuda_peak_bytes: the allocator's peak in these regions; None on a CPU.
        measured_overhead: share of the time in these regions, without recomputation, that
            recomputation took; None on a GPU, where operators run behind the program.
        num_dropped: tensors saved for backward that the plan drops and recomputes.
        peak_rss_bytes: peak resident memory of this process, everything included.
        num_blocks: blocks with a budget of their own each, see `MemoryManager.fit_blocks`.
    """

    budget_bytes: int | None
    plain_peak_bytes: int | None
    predicted_peak_bytes: int | None
    predicted_overhead: float | None
    measured_peak_bytes: int | None
    cuda_peak_bytes: int | None
    measured_overhead: float | None
    num_dropped: int
    peak_rss_bytes: int
    num_blocks: int = 0

    def describe(self) -> str:
        """One line for a log."""
        parts = []
        if self.num_blocks:
            parts.append(
                f"backbone memory: a budget for each of {self.num_blocks} blocks, "
                f"{self.num_dropped} tensors dropped"
            )
        elif self.budget_bytes is None:
            parts.append("backbone memory: no budget")
        else:
            assert self.plain_peak_bytes is not None
            assert self.predicted_peak_bytes is not None
            parts += [
                f"backbone memory: budget {format_bytes(self.budget_bytes)}",
                f"plain {format_bytes(self.plain_peak_bytes)}",
                f"planned {format_bytes(self.predicted_peak_bytes)}",
            ]
        if self.measured_peak_bytes is not None:
            parts.append(f"measured {format_bytes(self.measured_peak_bytes)}")
        if self.cuda_peak_bytes is not None:
            parts.append(f"CUDA allocator {format_bytes(self.cuda_peak_bytes)}")
        if self.predicted_overhead is not None:
            times = f"+{self.predicted_overhead:.1%} backbone time planned"
            if self.measured_overhead is not None:
                times += f", +{self.measured_overhead:.1%} measured"
            parts.append(f"{self.num_dropped} tensors dropped ({times})")
        parts.append(f"process peak {format_bytes(self.peak_rss_bytes)}")
        return ", ".join(parts)


class MemoryManager:
    """Runs a backbone's forward pass inside a budget, or plainly where there is none.

    Made by `fit`. Gradients, BatchNorm statistics and random state equal those of plain training.

    Attributes:
        plan: what is dropped at the largest batch; None without a budget.
        holds_loss: the budget is of the loss's memory too, and so `measure` is to count it.
    """

    def __init__(
        self,
        backbone: Backbone,
        held: Budget | None,
        plan: Plan | None,
        autocast_dtype: torch.dtype | None,
        budget_bytes: int | None,
        reserved_bytes: int,
        *,
        holds_loss: bool = False,
    ) -> None:
        self.plan = plan
        self.holds_loss = holds_loss
        self._backbone = backbone
        self._budgets = [] if held is None else [held]
        self._block_plans: list[Plan] = []
        self._autocast_dtype = autocast_dtype
        self._budget_bytes = budget_bytes
        self._reserved_bytes = reserved_bytes
        self._measured_peak_bytes: int | None = None
        self._cuda_peak_bytes: int | None = None
        self._measured_seconds = self._recompute_seconds = 0.0

    @classmethod
    def fit(
        cls,
        backbone: Backbone,
        example_images: Tensor,
        budget_bytes: int | None,
        *,
        autocast_dtype: torch.dtype | None = None,
        accumulates: bool = False,
        costs: CostTable | None = None,
        reserved_bytes: int = 0,
        loss_bytes: int | None = None,
    ) -> MemoryManager:
        """Plans the step on such a batch; other shapes are planned when they come.

        Args:
            backbone: in training mode, on its device.
            example_images: [B, 3, H, W] as the backbone gets them, B the most rows of a (micro-)
                batch on any rank; the values do not matter.
            budget_bytes: None runs plainly and plans nothing.
            autocast_dtype: run the backbone under autocast to this type. `forward` enters autocast
                itself: an outer region would cache cast weights that nobody planned.
            accumulates: gradients of earlier micro-batches exist when a later pass starts.
            reserved_bytes: of the budget, for what the step holds beside the backbone's tensors.
            loss_bytes: of the budget, what the head takes between the backbone's forward and
                backward pass; None: the budget is the backbone's alone.
            costs: what `time_operators` measured, on rank 0 and then broadcast, so that every
                rank makes the same plan; measured here when None.

        Raises:
            MemoptError: the budget is too small (the least is named), or the backbone cannot be
                planned for.
            FacetrainError: the backbone is not in training mode.
        """
        holds_loss = loss_bytes is not None
        if budget_bytes is None:
            return cls(backbone, None, None, autocast_dtype, None, 0, holds_loss=holds_loss)
        _check_training(backbone)
        held = budget(
            backbone,
            budget_bytes - reserved_bytes,
            costs=CostTable() if costs is None else costs,
            loss_bytes=loss_bytes or 0,
        )
        plans: list[Plan] = []
        too_small: list[BudgetTooSmallError] = []
        with _autocast(example_images.device.type, autocast_dtype):
            for with_gradients in (False, True) if accumulates else (False,):
                try:
                    plans.append(held.plan(example_images, accumulates=with_gradients))
                except BudgetTooSmallError as error:
                    too_small.append(error)
        if too_small:
            held.remove()
            raise max(too_small, key=lambda error: error.least_bytes)
        plan = max(plans, key=lambda one: one.peak_bytes)
        return cls(
            backbone,
            held,
            plan,
            autocast_dtype,
            budget_bytes,
            reserved_bytes,
            holds_loss=holds_loss,
        )

    @classmethod
    def fit_blocks(
        cls,
        backbone: Backbone,
        example_images: Tensor,
        budget_bytes: Mapping[str, int],
        *,
        autocast_dtype: torch.dtype | None = None,
        accumulates: bool = False,
        costs: CostTable | None = None,
    ) -> MemoryManager:
        """Plans some blocks' steps, each inside a budget of its own; the others run plainly.

        For a backbone whose blocks are sharded afterwards, with --zero-stage 2 or 3: while a block
        runs, forward or backward, its weights are whole, so that its plan holds.

        Args:
            budget_bytes: peak above the block's weights and input over its own forward and
                backward pass, by name among `backbone.segments()`; of blocks that are one module.
            accumulates: gradients of earlier micro-batches are beside the weights then, which
                those of a sharded block are not.

        Others, and errors, as of `fit`.
        """
        _check_training(backbone)
        blocks = {
            segment.name: segment.modules[0]
            for segment in backbone.segments()
            if segment.forward is segment.modules[0]
        }
        if unknown := [name for name in budget_bytes if name not in blocks]:
            raise MemoptError(
                f"block {unknown[0]} cannot have a budget: it must be one of {', '.join(blocks)}"
            )
        costs = CostTable() if costs is None else costs
        manager = cls(backbone, None, None, autocast_dtype, None, 0)
        name = ""
        try:
            with _autocast(example_images.device.type, autocast_dtype):
                inputs = _inputs_of_segments(backbone, example_images)
                for name, size_bytes in budget_bytes.items():
                    held = budget(blocks[name], size_bytes, costs=costs)
                    manager._budgets.append(held)
                    example = torch.empty_strided(
                        inputs[name].shape,
                        inputs[name].stride(),
                        dtype=inputs[name].dtype,
                        device=example_images.device,
                    ).requires_grad_(inputs[name].requires_grad)
                    plans = [
                        held.plan(example, accumulates=with_gradients)
                        for with_gradients in ((False, True) if accumulates else (False,))
                    ]
                    manager._block_plans.append(max(plans, key=lambda one: one.peak_bytes))
        except MemoptError as error:
            for held in manager._budgets:
                held.remove()
            raise MemoptError(f"block {name}: {error}") from error
        return manager

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings [B, D] of normalised images [B, 3, H, W].

        Without gradients, in evaluation, it runs plainly.

        Raises:
            MemoptError: a batch that does not fit the budget.
            FacetrainError: an outer autocast region.
        """
        device = images.device.type
        if self._autocast_dtype is None and torch.is_autocast_enabled(device):
            raise FacetrainError(
                "autocast is on around the backbone, whose memory is planned without: pass "
                "autocast_dtype to fit"
            )
        with _autocast(device, self._autocast_dtype):
            return self._backbone(images)

    @contextmanager
    def measure(self) -> Iterator[LiveBytes]:
        """Counts the peak of one real step; `report` gives the largest of all regions.

        Put forward and backward inside (all micro-batches of a step that accumulates) and the
        optimizer's step outside. What yields is the counter: wrap the classifier's own work in its
        `paused()` to count the backbone alone. About 10 us an operator, so not for every step.
        """
        device = next(self._backbone.parameters()).device
        resting_bytes = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            resting_bytes = torch.cuda.memory_allocated(device)
        recomputed_before = sum(held.recompute_seconds for held in self._budgets)
        start = time.perf_counter()
        with LiveBytes() as live:
            yield live
        self._measured_seconds += time.perf_counter() - start - live.paused_seconds
        recomputed = sum(held.recompute_seconds for held in self._budgets)
        self._recompute_seconds += recomputed - recomputed_before
        self._measured_peak_bytes = max(self._measured_peak_bytes or 0, live.peak_bytes)
        if device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_allocated(device) - resting_bytes
            self._cuda_peak_bytes = max(self._cuda_peak_bytes or 0, peak_bytes)

    def report(self) -> MemoryReport:
        """Budget, prediction and measurement so far."""
        plan, reserved = self.plan, self._reserved_bytes
        plans = self._block_plans
        measured_overhead = None
        on_gpu = next(self._backbone.parameters()).device.type == "cuda"
        if self._budgets and self._measured_seconds and not on_gpu:
            rest = self._measured_seconds - self._recompute_seconds
            measured_overhead = self._recompute_seconds / rest
        return MemoryReport(
            budget_bytes=self._budget_bytes,
            plain_peak_bytes=None if plan is None else plan.plain_peak_bytes + reserved,
            predicted_peak_bytes=None if plan is None else plan.peak_bytes + reserved,
            predicted_overhead=None if plan is None else plan.overhead,
            measured_peak_bytes=self._measured_peak_bytes,
            cuda_peak_bytes=self._cuda_peak_bytes,
            measured_overhead=measured_overhead,
            num_dropped=sum(len(one.schedule.drops) for one in (plans if plan is None else [plan])),
            num_blocks=len(plans),
            peak_rss_bytes=peak_rss_bytes(),
        )


def time_operators(
    backbone: Backbone, example_images: Tensor, *, autocast_dtype: torch.dtype | None = None
) -> CostTable:
    """Times each distinct operator of a step once, in some seconds; data to broadcast.

    Arguments as of `MemoryManager.fit`.

    Raises:
        MemoptError: the backbone cannot be traced.
        FacetrainError: the backbone is not in training mode.
    """
    _check_training(backbone)
    costs = CostTable()
    with _autocast(example_images.device.type, autocast_dtype):
        recording = trace(backbone, (example_images,))
    with_costs(recording, costs)
    find_splits(recording, costs)
    return costs


def _inputs_of_segments(backbone: Backbone, example_images: Tensor) -> dict[str, Tensor]:
    """What each segment gets, by its name, as fake tensors."""
    found = {}
    with FakeTensorMode():
        activation = fake_like(example_images)
        for segment in cast(Backbone, fake_copy(backbone)).segments():
            found[segment.name] = activation
            activation = segment.forward(activation)
    return found


def _check_training(backbone: Backbone) -> None:
    if not backbone.training:
        raise FacetrainError("the backbone is in evaluation mode: call train() before planning")


def peak_memory_bytes(device: torch.device) -> int:
    """What runs out first: the allocator's peak on a GPU, else the process's peak memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process since it started, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage's figure would start at the parent's, in a process that was spawned.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def _autocast(device_type: str, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)
