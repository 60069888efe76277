"""What the memory benchmarks measure of a training step: counted, allocated and resident bytes.

- **counted**: `memopt.live_bytes.LiveBytes`, tensors that operators make.
- **allocated**: what PyTorch's CPU allocator hands out, by the profiler's record: workspaces that
  kernels take from it, and what compiled code allocates past every dispatch mode, included.
- **resident**: by the kernel's high-water mark of the process (Linux). glibc keeps freed memory and
  so hides a saving; MALLOC_MMAP_THRESHOLD_=65536 makes it honest and the step slow, hence a
  process of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from memopt.live_bytes import LiveBytes

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """Forward and backward pass of a model, over a loss that needs next to nothing.

    Attributes:
        forward: the model, as the system under test runs it.
        model: whose gradients are made.
        batch: the input.
    """

    forward: Forward
    model: nn.Module
    batch: Tensor

    def __call__(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.forward(self.batch).square().mean().backward()


def twin(model: nn.Module) -> nn.Module:
    """A copy with buffers of its own, and the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def peak_bytes(step: Step, *, countable: bool) -> tuple[int | None, int]:
    """Counted (if it can be) and allocated bytes of a step that starts without gradients."""
    step.model.zero_grad(set_to_none=True)
    recording = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording as record, LiveBytes() if countable else nullcontext() as live:
        step()
    assert record.profiler is not None
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return (live.peak_bytes if live is not None else None), peak


def resident_bytes() -> int:
    """Of this process, now."""
    return _status_bytes("VmRSS")


def resident_peak_bytes(run: Callable[[], None]) -> int:
    """High-water mark of this process while it runs, less what it had before."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the mark to what is resident now
    before = resident_bytes()
    run()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}: resident memory is measured on Linux only")


@dataclass(frozen=True)
class Bits:
    """Gradients and buffers after one step, to be compared with another's."""

    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @staticmethod
    def after(step: Step, buffers: dict[str, Tensor]) -> Bits:
        """Runs the step, with buffers that start as given."""
        with torch.no_grad():
            for name, buffer in step.model.named_buffers():
                buffer.copy_(buffers[name])
        step()
        gradients = {
            name: parameter.grad
            for name, parameter in step.model.named_parameters()
            if parameter.grad is not None
        }
        found = {name: buffer.clone() for name, buffer in step.model.named_buffers()}
        return Bits(gradients, found)

    def compare(self, plain: Bits) -> str:
        """What equals plain training's."""
        if not _equal(self.gradients, plain.gradients):
            return "nothing"
        return "all" if _equal(self.buffers, plain.buffers) else "gradients"


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
