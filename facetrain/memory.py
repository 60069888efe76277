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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from facetrain.backbones import Backbone
from facetrain.errors import FacetrainError
from memopt.blocks import (
    ChainProfile,
    SegmentPlan,
    SegmentRunner,
    plan_segments,
    profile_segments,
)
from memopt.errors import MemoptError
from memopt.live_bytes import LiveBytes
from memopt.units import format_bytes, parse_bytes

__all__ = [
    "MemoptError",
    "MemoryManager",
    "MemoryReport",
    "format_bytes",
    "parse_bytes",
    "peak_memory_bytes",
    "peak_rss_bytes",
    "profile_backbone",
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
        recomputed: names of the segments that are recomputed.
        num_segments: how many the backbone has.
        peak_rss_bytes: peak resident memory of this process, everything included.
    """

    budget_bytes: int | None
    plain_peak_bytes: int | None
    predicted_peak_bytes: int | None
    predicted_overhead: float | None
    measured_peak_bytes: int | None
    cuda_peak_bytes: int | None
    recomputed: tuple[str, ...]
    num_segments: int
    peak_rss_bytes: int

    def describe(self) -> str:
        """One line for a log."""
        parts = []
        if self.budget_bytes is None:
            parts.append("backbone memory: no budget")
        else:
            assert self.plain_peak_bytes is not None
            assert self.predicted_peak_bytes is not None
            assert self.predicted_overhead is not None
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
            parts.append(
                f"{len(self.recomputed)} of {self.num_segments} segments recomputed "
                f"(+{self.predicted_overhead:.1%} backbone time)"
            )
        parts.append(f"process peak {format_bytes(self.peak_rss_bytes)}")
        return ", ".join(parts)


class MemoryManager:
    """Runs a backbone's forward pass under a plan, or plainly where there is no budget.

    Made by `fit`. Gradients, BatchNorm statistics and random state equal those of plain training.

    Attributes:
        plan: what is recomputed; None without a budget.
    """

    def __init__(
        self,
        backbone: Backbone,
        profile: ChainProfile | None,
        plan: SegmentPlan | None,
        autocast_dtype: torch.dtype | None,
    ) -> None:
        self.plan = plan
        self._backbone = backbone
        self._autocast_dtype = autocast_dtype
        self._planned_shape = None if profile is None else profile.input_shape
        self._segments = backbone.segments()
        self._runner = None if plan is None else SegmentRunner(self._segments, plan, autocast_dtype)
        self._measured_peak_bytes: int | None = None
        self._cuda_peak_bytes: int | None = None

    @classmethod
    def fit(
        cls,
        backbone: Backbone,
        example_images: Tensor,
        budget_bytes: int | None,
        *,
        autocast_dtype: torch.dtype | None = None,
        accumulates: bool = False,
        profile: ChainProfile | None = None,
        reserved_bytes: int = 0,
    ) -> MemoryManager:
        """Plans for batches up to the size of the example.

        Args:
            backbone: in training mode, on its device.
            example_images: [B, 3, H, W] as the backbone gets them, B the most rows of a (micro-)
                batch on any rank; the values do not matter.
            budget_bytes: None runs plainly and profiles nothing.
            autocast_dtype: run the backbone under autocast to this type. `forward` enters autocast
                itself: an outer region would cache cast weights that nobody planned.
            accumulates: gradients of earlier micro-batches exist when a forward pass starts.
            reserved_bytes: of the budget, see `plan_segments`.
            profile: what `profile_backbone` measured, on rank 0 and then broadcast, so that every
                rank makes the same plan; measured here when None.

        Raises:
            MemoptError: the budget is too small (the least is named), or the backbone cannot be
                profiled.
            FacetrainError: the backbone is not in training mode.
        """
        if budget_bytes is None:
            return cls(backbone, None, None, autocast_dtype)
        if profile is None:
            profile = profile_backbone(
                backbone, example_images, autocast_dtype=autocast_dtype, accumulates=accumulates
            )
        plan = plan_segments(profile, budget_bytes, reserved_bytes)
        return cls(backbone, profile, plan, autocast_dtype)

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings [B, D] of normalised images [B, 3, H, W].

        Without gradients, in evaluation, it runs plainly at any batch size.

        Raises:
            FacetrainError: a batch larger than the plan is for, or an outer autocast region that
                the plan does not know.
        """
        if self._runner is None or not torch.is_grad_enabled():
            with _autocast(images.device.type, self._autocast_dtype):
                return self._backbone(images)
        assert self._planned_shape is not None
        if images.shape[0] > self._planned_shape[0] or images.shape[1:] != self._planned_shape[1:]:
            raise FacetrainError(
                f"batch of shape {list(images.shape)}: the memory plan is for at most "
                f"{list(self._planned_shape)}; fit with the largest batch"
            )
        if self._autocast_dtype is None and torch.is_autocast_enabled(images.device.type):
            raise FacetrainError(
                "autocast is on around the backbone, but its memory plan was made without; "
                "pass autocast_dtype to fit"
            )
        return self._runner(images)

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
        with LiveBytes() as live:
            yield live
        self._measured_peak_bytes = max(self._measured_peak_bytes or 0, live.peak_bytes)
        if device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_allocated(device) - resting_bytes
            self._cuda_peak_bytes = max(self._cuda_peak_bytes or 0, peak_bytes)

    def report(self) -> MemoryReport:
        """Budget, prediction and measurement so far."""
        plan = self.plan
        return MemoryReport(
            budget_bytes=None if plan is None else plan.budget_bytes,
            plain_peak_bytes=None if plan is None else plan.plain_peak_bytes,
            predicted_peak_bytes=None if plan is None else plan.predicted_peak_bytes,
            predicted_overhead=None if plan is None else plan.predicted_overhead,
            measured_peak_bytes=self._measured_peak_bytes,
            cuda_peak_bytes=self._cuda_peak_bytes,
            recomputed=() if plan is None else plan.recomputed_names,
            num_segments=len(self._segments),
            peak_rss_bytes=peak_rss_bytes(),
        )


def profile_backbone(
    backbone: Backbone,
    example_images: Tensor,
    *,
    autocast_dtype: torch.dtype | None = None,
    accumulates: bool = False,
    num_timings: int = 2,
) -> ChainProfile:
    """Measures each segment alone, in about `num_timings` + 3 steps' time; data to broadcast.

    Arguments as of `MemoryManager.fit`; of `num_timings` runs the fastest counts. Weights, buffers,
    gradients and random state are left as they were. Call it before a distributed optimizer hooks
    itself to the parameters.

    Raises:
        MemoptError: SyncBatchNorm in the backbone, or hooks on its parameters.
        FacetrainError: the backbone is not in training mode.
    """
    if not backbone.training:
        raise FacetrainError("the backbone is in evaluation mode: call train() before planning")
    return profile_segments(
        backbone.segments(),
        example_images,
        autocast_dtype=autocast_dtype,
        accumulates=accumulates,
        num_timings=num_timings,
    )


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
