"""Runs a chain of segments, some kept and some recomputed in the backward pass.

A recomputed segment goes through `torch.utils.checkpoint` (non-reentrant): of it only the input is
kept, and its forward pass runs again, under the same autocast and random state, when its backward
pass first asks for a tensor. The result equals plain training bit for bit:

- Buffers. In the second run each buffer is a scratch copy, so that BatchNorm's running statistics
  and counter move once. (Running without statistics would save fewer tensors than the first run
  did, which checkpoint refuses.)
- Autocast. The cast weights are not cached across segments: the cache would hold those of
  recomputed segments, unplanned, until the surrounding autocast region ends.
- Parameters. A recomputation reads them live. Had one changed since the forward pass, plain
  autograd would raise; so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memopt.blocks.plan import SegmentPlan
from memopt.blocks.segment import Segment, parameters, submodules
from memopt.errors import MemoptError


class SegmentRunner:
    """The forward pass of a chain under a plan.

    Args:
        segments: the chain that was profiled, in order.
        plan: which of them to recompute.
        autocast_dtype: run each segment under autocast to this type, as it was profiled; None
            leaves autocast alone.

    Raises:
        MemoptError: the plan was made for another chain.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        plan: SegmentPlan,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        names = tuple(segment.name for segment in segments)
        if names != plan.names:
            raise MemoptError(
                f"the plan is for segments {', '.join(plan.names)}, the model has "
                f"{', '.join(names)}: profile and plan this model"
            )
        self._segments = tuple(segments)
        self._plan = plan
        self._autocast_dtype = autocast_dtype

    def __call__(self, x: Tensor) -> Tensor:
        """The chain's output; a backward pass through it recomputes what the plan says."""
        for segment, recompute in zip(self._segments, self._plan.recompute, strict=True):
            x = run_segment(segment, x, recompute=recompute, autocast_dtype=self._autocast_dtype)
        return x


def run_segment(
    segment: Segment, x: Tensor, *, recompute: bool, autocast_dtype: torch.dtype | None
) -> Tensor:
    """The segment's output, with a graph that keeps its inside or recomputes it."""
    with _autocast(x.device.type, autocast_dtype):
        if not (recompute and torch.is_grad_enabled()):
            return segment.forward(x)
        return checkpoint(
            segment.forward,
            x,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _SecondRun(segment)),
        )


def _autocast(device_type: str, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    if dtype is None:
        return nullcontext()
    return torch.autocast(device_type, dtype, cache_enabled=False)


class _SecondRun:
    """Context of a recomputation: made in the forward pass, entered once per backward pass.

    A class, since `retain_graph` allows several backward passes and a generator enters only once.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._versions = self._parameter_versions()
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []

    def _parameter_versions(self) -> list[int]:
        return [parameter._version for parameter in parameters(self._segment)]

    def __enter__(self) -> None:
        if self._parameter_versions() != self._versions:
            raise MemoptError(
                f"segment {self._segment.name}: a parameter changed between the forward and the "
                "backward pass, so it cannot be recomputed; step the optimizer after the backward"
            )
        for module in submodules(self._segment):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._buffers.append((module, name, buffer))
                    module._buffers[name] = buffer.clone()

    def __exit__(self, *exc_info: object) -> None:
        # Also on the way out of checkpoint's early stop, which is an exception.
        while self._buffers:
            module, name, buffer = self._buffers.pop()
            module._buffers[name] = buffer
