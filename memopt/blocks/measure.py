"""Measures each segment of a chain alone, so that no step is ever run over the budget.

Segment after segment, fed by the detached output of the one before, runs forward and backward
twice under `LiveBytes`: as it is, and under checkpoint. A few numbers of bytes a segment are enough
to know the peak of the whole chain under any plan (memopt/blocks/plan.py); timed runs without the
counter give the cost of recomputing it. Buffers, gradients and random state are put back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from memopt.blocks.profile import ChainProfile, PassBytes, SegmentProfile
from memopt.blocks.run import run_segment
from memopt.blocks.segment import Segment, parameters, submodules
from memopt.errors import MemoptError
from memopt.live_bytes import LiveBytes


def profile_segments(
    segments: Sequence[Segment],
    example_input: Tensor,
    *,
    autocast_dtype: torch.dtype | None = None,
    accumulates: bool = False,
    num_timings: int = 2,
) -> ChainProfile:
    """Measures every segment alone; takes about `num_timings` + 3 steps' time.

    Call it before anything is hooked to the parameters (a distributed optimizer would communicate).

    Args:
        segments: the chain, in the mode (training or not) it will run in.
        example_input: of the shape, type, layout and device of a training batch.
        autocast_dtype: run under autocast to this type; None leaves autocast alone.
        accumulates: the step adds to gradients that exist already.
        num_timings: the fastest of so many runs counts.

    Raises:
        MemoptError: no segments, SyncBatchNorm (its backward pass communicates, so it can neither
            be measured alone nor recomputed), or hooks on the parameters.
    """
    if not segments:
        raise MemoptError("the model has no segments: give at least one to profile")
    for segment in segments:
        _check_measurable(segment)
    profiles = []
    # A parameter that segments share gets its gradient from the last of them first.
    counted: set[int] = set()
    gradients_bytes = []
    for segment in reversed(segments):
        new = [p for p in parameters(segment) if id(p) not in counted]
        counted.update(map(id, new))
        gradients_bytes.append(sum(p.nbytes for p in new))
    x, requires_grad = example_input.detach(), False
    cuda_devices = [example_input.device] if example_input.is_cuda else []
    with torch.enable_grad(), torch.random.fork_rng(cuda_devices):
        for segment, gradient_bytes in zip(segments, reversed(gradients_bytes), strict=True):
            with _Bench(segment, x, requires_grad, autocast_dtype, accumulates) as bench:
                kept = bench.measure(recompute=False)
                recomputed = None
                if kept.requires_grad and not kept.in_place:
                    recomputed = bench.measure(recompute=True).passes
                timings_us = [bench.time() for _ in range(num_timings)]
            profiles.append(
                SegmentProfile(
                    name=segment.name,
                    output_bytes=kept.output_bytes,
                    gradient_bytes=gradient_bytes,
                    kept=kept.passes,
                    recomputed=recomputed,
                    has_backward=kept.requires_grad,
                    forward_us=min(forward_us for forward_us, _ in timings_us),
                    backward_us=min(backward_us for _, backward_us in timings_us),
                )
            )
            x, requires_grad = kept.output, kept.requires_grad
    return ChainProfile(tuple(profiles), tuple(example_input.shape), accumulates)


def _check_measurable(segment: Segment) -> None:
    for module in submodules(segment):
        if isinstance(module, nn.SyncBatchNorm):
            raise MemoptError(
                f"segment {segment.name}: SyncBatchNorm communicates in both passes and cannot be "
                "recomputed; use BatchNorm, or train without a memory budget"
            )
    for parameter in parameters(segment):
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise MemoptError(
                f"segment {segment.name}: a hook is registered on its parameters, and profiling "
                "would fire it; profile before wrapping the model or its optimizer"
            )


class _Measured(NamedTuple):
    passes: PassBytes
    output: Tensor
    output_bytes: int
    requires_grad: bool
    in_place: bool


class _Bench:
    """One segment under measurement; leaves its buffers and gradients as they were."""

    def __init__(
        self,
        segment: Segment,
        x: Tensor,
        requires_grad: bool,
        autocast_dtype: torch.dtype | None,
        accumulates: bool,
    ) -> None:
        self._segment = segment
        self._x = x
        self._anchor = x.new_zeros((), dtype=torch.float32, requires_grad=requires_grad)
        self._autocast_dtype = autocast_dtype
        self._accumulates = accumulates
        self._parameters = parameters(segment)

    def __enter__(self) -> _Bench:
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._buffers = [
            (buffer, buffer.clone())
            for module in submodules(self._segment)
            for buffer in module.buffers(recurse=False)
        ]
        return self

    def __exit__(self, *exc_info: object) -> None:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        for buffer, before in self._buffers:
            buffer.copy_(before)

    def measure(self, *, recompute: bool) -> _Measured:
        """Bytes of one forward and backward pass, and the output for the next segment."""
        self._reset_gradients()
        with LiveBytes() as live:
            with live.paused():
                x = _Entry.apply(self._anchor, self._x)
            version = x._version
            y = self._run(x, recompute=recompute)
            in_place = x._version != version
            forward_peak_bytes = live.peak_bytes
            output_bytes = live.counted_bytes(y)
            saved_bytes = live.live_bytes - output_bytes
            requires_grad = y.requires_grad
            with live.paused():
                output = y.detach().clone()
                end = _Exit.apply(y)
            # From here on only the graph holds the output, if it needs it.
            del x, y
            live.reset_peak()
            if requires_grad:
                end.backward()
        passes = PassBytes(saved_bytes, forward_peak_bytes, live.peak_bytes)
        return _Measured(passes, output, output_bytes, requires_grad, in_place)

    def time(self) -> tuple[int, int]:
        """Microseconds of a forward and of a backward pass, nothing counted."""
        self._reset_gradients()
        x = _Entry.apply(self._anchor, self._x)
        start_us = _clock_us(x.device)
        end = _Exit.apply(self._run(x, recompute=False))
        middle_us = _clock_us(x.device)
        if end.requires_grad:
            end.backward()
        return middle_us - start_us, _clock_us(x.device) - middle_us

    def _run(self, x: Tensor, *, recompute: bool) -> Tensor:
        return run_segment(
            self._segment, x, recompute=recompute, autocast_dtype=self._autocast_dtype
        )

    def _reset_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter) if self._accumulates else None


class _Entry(torch.autograd.Function):
    """Hands a segment its input as the previous one would: not a leaf, its gradient not kept."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


class _Exit(torch.autograd.Function):
    """Ends a segment in a scalar; its backward pass makes a full gradient that only autograd holds.

    (One passed to `backward` by a caller would live until that returns; one of `sum` is expanded.)
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.like = (y.size(), y.stride(), y.dtype, y.device)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        size, stride, dtype, device = ctx.like
        return torch.empty_strided(size, stride, dtype=dtype, device=device).fill_(1e-3)


def _clock_us(device: torch.device) -> int:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter_ns() // 1000
