"""The one training loop: data-parallel backbone, class-sharded head, checkpoints, bad steps.

    for each step:  exchange batch sizes -> per micro-batch: backbone forward, head forward, head
    backward (which steps its centers, unless their gradient is needed whole), backbone backward ->
    gradients summed over ranks -> clip -> step

Shapes: B rows of this rank in a micro-batch, N rows of all ranks and micro-batches of a step.
The loss of a step is the mean over its N rows, however they are cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from facetrain.backbones import Backbone
from facetrain.checkpoint import BACKBONE, HEAD, CheckpointFolder, TrainingState, with_prefix
from facetrain.classifier import ShardedClassifier
from facetrain.config import RunConfig
from facetrain.distributed import Communicator
from facetrain.errors import FacetrainError
from facetrain.memory import MemoryManager, format_bytes, peak_memory_bytes
from facetrain.optim import LrSchedule
from facetrain.preprocessing import Preprocessing
from facetrain.run_log import RunLog
from facetrain.stop_request import StopRequest
from facetrain.throughput import Clock, Interval
from facetrain.zero import backbone_update

_MOST_BAD_STEPS_IN_A_ROW = 20


class Batch(Protocol):
    """What the loader yields for one micro-batch of this rank."""

    images: Tensor
    """uint8 RGB [B, 3, H, W]; B may be 0."""
    labels: Tensor
    """int64 [B]."""
    indices: Tensor
    """int64 [B], the images' numbers in their source."""
    skipped: list[str]
    """One line for each image left out: file and reason."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Components:
    """What a trainer works with, besides its config."""

    backbone: Backbone
    memory: MemoryManager
    head: ShardedClassifier
    preprocessing: Preprocessing
    schedule: LrSchedule
    communicator: Communicator
    checkpoints: CheckpointFolder
    log: RunLog
    facts: Mapping[str, Any]
    """What a checkpoint and a run that goes on from it must share."""
    describe_image: Callable[[int], str]
    """File name of an image, by its number in the source."""


@dataclass
class Totals:
    """Counts of a run so far; in its checkpoints."""

    skipped_images: int = 0
    skipped_steps: int = 0


@dataclass(frozen=True)
class TrainingOutcome:
    """How training ended."""

    step: int
    stopped: bool
    """Ctrl-C or SIGTERM, before the last step; a checkpoint of `step` was saved."""
    images_per_s: float
    """Over all ranks, without checkpoints; 0 when no step was done."""
    input_share: float
    """Share of that time spent waiting for images."""
    totals: Totals

    @property
    def compute_s_per_image(self) -> float:
        """Of a step's time, without waiting for images; 0 when no step was done."""
        return (1 - self.input_share) / self.images_per_s if self.images_per_s else 0.0


class Trainer:
    """Trains until the schedule's last step, or until asked to stop."""

    def __init__(self, config: RunConfig, parts: Components) -> None:
        self._config = config
        self._parts = parts
        self._update = backbone_update(
            config.optim, parts.backbone, parts.head.margin, parts.communicator
        )
        assert parts.head.optimizer is not None
        self._center_optimizer = parts.head.optimizer
        self._totals = Totals()
        self._bad_steps_in_a_row = 0
        self.step = 0

    # --- state -----------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of the current step; every rank calls it."""
        parts = self._parts
        average_buffers(parts.backbone, parts.communicator)
        first = parts.communicator.rank == 0
        weights = self._update.weights(wanted=first)
        optimizer_state = self._update.optimizer_state(wanted=first)
        parts.checkpoints.save(
            TrainingState(
                self.step,
                parts.facts,
                common={
                    **{BACKBONE + k: v for k, v in weights.items()},
                    **{f"optimizer/{k}": v for k, v in optimizer_state.items()},
                    **{HEAD + k: v for k, v in parts.head.common_state().items()},
                    "skipped_images": self._totals.skipped_images,
                    "skipped_steps": self._totals.skipped_steps,
                },
                rows=parts.head.rows_state() if parts.head.copies.rank == 0 else {},
            )
        )

    def resume(self, step: int) -> None:
        """Take over the checkpoint of `step`, whatever world size wrote it."""
        parts = self._parts
        head = parts.head
        state = parts.checkpoints.load(
            step, parts.facts, {"centers": head.row_range}, head.rows_state()
        )
        self._update.load_weights(with_prefix(state.common, BACKBONE))
        self._update.restore_optimizer_state(with_prefix(state.common, "optimizer/"))
        head.load_common_state(with_prefix(state.common, HEAD))
        self._totals = Totals(state.common["skipped_images"], state.common["skipped_steps"])
        self.step = state.step

    def describe_update(self) -> str | None:
        """What of the backbone is sharded, for the log; None where nothing is."""
        return self._update.describe()

    def trained_backbone(self) -> Backbone:
        """The backbone with all its weights, to evaluate and save; every rank calls it, at the end.

        BatchNorm statistics are the mean over the ranks.
        """
        average_buffers(self._parts.backbone, self._parts.communicator)
        return self._update.whole_backbone()

    # --- loop ------------------------------------------------------------------------------------

    def fit(self, batches: Iterable[Batch]) -> TrainingOutcome:
        """Do the steps from `self.step` on.

        Args:
            batches: this rank's micro-batches, from the current step on.
        """
        parts, optim = self._parts, self._config.optim
        num_steps = parts.schedule.num_steps
        first_step = self.step
        # The first step also sets things up; the one after it is like all others.
        measured_step = min(first_step + 1, num_steps - 1)
        clock = Clock()
        interval = Interval()
        with (
            StopRequest() as stop,
            parts.log.progress("training", num_steps, first_step) as progress,
        ):
            # Loader workers start here, and take over how this process answers Ctrl-C.
            stream = iter(batches)
            while self.step < num_steps:
                started = time.perf_counter()
                micro_batches = [next(stream) for _ in range(optim.micro_batches)]
                waited = time.perf_counter() - started
                counts = self._exchange(micro_batches, stop)
                if stop.agreed:
                    if interval.num_images:
                        self._log_interval(interval)
                    if self.step > 0:
                        self.save()
                    break
                loss, num_rows = self._do_step(
                    micro_batches, counts, measured=self.step == measured_step
                )
                self.step += 1
                elapsed = time.perf_counter() - started
                clock.add(elapsed, waited, num_rows, counted=self.step > first_step + 2)
                interval.add(loss, elapsed, waited, num_rows)
                last = self.step == num_steps
                if (verdict := clock.input_verdict(last=last)) is not None:
                    parts.log.say(verdict)
                if last or self.step % self._config.log_every == 0:
                    self._log_interval(interval)
                    interval = Interval()
                progress.update(self.step, self._note(loss, clock))
                if last or self.step % self._config.checkpoint_every == 0:
                    self.save()
        return TrainingOutcome(
            self.step,
            stopped=self.step < num_steps,
            images_per_s=clock.images_per_s,
            input_share=clock.input_share,
            totals=self._totals,
        )

    def _do_step(
        self, micro_batches: Sequence[Batch], counts: Sequence[Sequence[int]], *, measured: bool
    ) -> tuple[float, int]:
        """One optimizer step; the loss of its N rows, and N.

        Args:
            counts: rows to use of each micro-batch and rank, [micro-batch][rank].
            measured: count the backbone's memory.
        """
        parts = self._parts
        num_rows = sum(sum(row) for row in counts)
        if num_rows == 0:
            self._skip_step(micro_batches, "none of its images can be read")
            return math.nan, 0

        step_seed = (self._config.seed * 1_000_003 + self.step) * 4096 + parts.communicator.rank
        torch.manual_seed(step_seed % 2**63)
        buffers = [*parts.backbone.buffers(), *parts.head.margin.buffers()]
        before = [buffer.clone() for buffer in buffers]
        self._update.zero_grad()
        # Before the pass: centers may be stepped in it.
        self._set_lr(parts.schedule.lr(self.step))
        loss = torch.zeros((), device=parts.communicator.device)
        with parts.memory.measure() if measured else nullcontext() as live:
            for index, batch in enumerate(micro_batches):
                with self._update.passes(last=index == len(micro_batches) - 1):
                    loss += self._do_micro_batch(
                        batch,
                        counts[index],
                        num_rows,
                        not_counted=nullcontext if live is None else live.paused,
                    )
        # The same on every rank, as sums over all ranks.
        value = loss.item()
        limit = self._config.optim.max_gradient_norm or math.inf
        norms = [self._update.clip(limit)]
        if limit := self._config.head.max_center_gradient_norm:
            norms.append(parts.head.clip_gradient(limit))
        if not all(math.isfinite(number) for number in (value, *norms)):
            for buffer, value_before in zip(buffers, before, strict=True):
                buffer.copy_(value_before)
            parts.head.drop_gradient()
            shown = ", of the centers ".join(f"{norm:g}" for norm in norms)
            self._skip_step(micro_batches, f"loss {value:g}, gradient norm {shown}")
            return math.nan, num_rows
        self._bad_steps_in_a_row = 0
        parts.head.step()
        self._update.step()
        return value, num_rows

    def _set_lr(self, lr: float) -> None:
        self._update.set_lr(lr)
        self._center_optimizer.lr = lr

    def _do_micro_batch(
        self,
        batch: Batch,
        counts: Sequence[int],
        num_rows: int,
        *,
        not_counted: Callable[[], AbstractContextManager[Any]],
    ) -> Tensor:
        """Forward and backward; this micro-batch's part of the step's loss.

        Args:
            counts: rows to use of each rank; of this one all or none. Without any, this rank
                only takes part in collectives.
            not_counted: entered around the input, and around the head unless the memory's budget
                is the head's too.
        """
        parts = self._parts
        device = parts.communicator.device
        size = counts[parts.communicator.rank]
        with not_counted():
            images = parts.preprocessing.normalise(batch.images.to(device, non_blocking=True))
            labels = batch.labels[:size].to(device)
        stands_in = size == 0 and self._update.needs_every_rank
        if stands_in:
            # Others wait for this rank's part of the weights: a pass of blank images.
            images = torch.zeros((2, *batch.images.shape[1:]), device=device)
            images = images.contiguous(memory_format=torch.channels_last)
            before = [buffer.clone() for buffer in parts.backbone.buffers()]
        if size or stands_in:
            embeddings = parts.memory.forward(images)
        else:
            embeddings = torch.zeros((0, parts.backbone.embedding_size), device=device)
        with nullcontext() if parts.memory.holds_loss else not_counted():
            # A leaf of its own, so that the head's memory is free before backward begins.
            leaf = embeddings.detach()[:size].requires_grad_()
            loss: Tensor = parts.head(leaf, labels, counts=counts, num_rows=num_rows)
            loss.backward()
        if size:
            embeddings.backward(leaf.grad)
        elif stands_in:
            embeddings.backward(torch.zeros_like(embeddings))
            for buffer, value in zip(parts.backbone.buffers(), before, strict=True):
                buffer.copy_(value)
        return loss.detach()

    def _exchange(self, micro_batches: Sequence[Batch], stop: StopRequest) -> list[list[int]]:
        """Rows to use of each micro-batch and rank; also agrees on stopping, and names skips.

        A row alone on a rank is not used: BatchNorm has no statistics of one. 8 bytes a number.
        """
        communicator = self._parts.communicator
        sizes = [len(batch) if len(batch) > 1 else 0 for batch in micro_batches]
        num_skipped = sum(len(batch.skipped) for batch in micro_batches)
        own = torch.tensor([[*sizes, num_skipped, stop.requested]], dtype=torch.int64)
        rows = communicator.all_gather(own.to(communicator.device), [1] * communicator.world_size)
        *counts, skipped, requested = rows.T.tolist()
        stop.agreed = any(requested)
        if any(skipped) and not stop.agreed:
            self._note_skipped(micro_batches)
        return counts

    # --- what went wrong -------------------------------------------------------------------------

    def _note_skipped(self, micro_batches: Sequence[Batch]) -> None:
        """Count and name images that could not be read, and rows left alone by them."""
        lines = [line for batch in micro_batches for line in batch.skipped]
        lines += [
            f"{name}: alone in its micro-batch, which BatchNorm cannot use"
            for batch in micro_batches
            for name in (self._names(batch) if len(batch) == 1 else [])
        ]
        everyone = self._parts.communicator.all_gather_object(lines)
        files = [line for rank_lines in everyone for line in rank_lines]
        self._totals.skipped_images += len(files)
        self._parts.log.skipped(self.step + 1, f"{len(files)} images skipped, {files[0]}", files)

    def _skip_step(self, micro_batches: Sequence[Batch], reason: str) -> None:
        """Count a step that cannot be used, and name its images."""
        names = [name for batch in micro_batches for name in self._names(batch)]
        everyone = self._parts.communicator.all_gather_object(names)
        files = [name for rank_names in everyone for name in rank_names]
        self._totals.skipped_steps += 1
        self._bad_steps_in_a_row += 1
        what = f"step skipped: {reason}"
        if files:
            what += f"; its {len(files)} images (first {files[0]}) are listed in skipped.jsonl"
        self._parts.log.skipped(self.step + 1, what, files)
        if self._bad_steps_in_a_row == _MOST_BAD_STEPS_IN_A_ROW:
            raise FacetrainError(
                f"{_MOST_BAD_STEPS_IN_A_ROW} steps in a row skipped, the last at step "
                f"{self.step + 1} ({reason}): check the images' disk, or lower --lr, then go on "
                "from the last checkpoint with --resume"
            )

    def _names(self, batch: Batch) -> list[str]:
        return [self._parts.describe_image(index) for index in batch.indices.tolist()]

    # --- what is shown ---------------------------------------------------------------------------

    def _note(self, loss: float, clock: Clock) -> str:
        memory = format_bytes(peak_memory_bytes(self._parts.communicator.device))
        return f"loss {loss:.3f}  {clock.images_per_s:.0f} img/s  process {memory}"

    def _log_interval(self, interval: Interval) -> None:
        values = {
            "lr": self._parts.schedule.lr(self.step - 1),
            "images_per_s": interval.images_per_s,
            "input_share": interval.input_share,
            "peak_memory_bytes": peak_memory_bytes(self._parts.communicator.device),
        }
        if math.isfinite(interval.mean_loss):
            values["loss"] = interval.mean_loss
        self._parts.log.metrics(self.step, values)


def average_buffers(module: nn.Module, communicator: Communicator) -> None:
    """Set floating-point buffers (BatchNorm statistics) to their mean over ranks, in place.

    Each rank saw its own rows; the mean is the better estimate, and the same on every rank. Being
    linear in the batches seen, the statistics do not depend on how often this is done. One
    all-reduce of all buffers.
    """
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if communicator.world_size == 1 or not buffers:
        return
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
    communicator.all_reduce(flat).div_(communicator.world_size)
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))
