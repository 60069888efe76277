"""What the segments of a chain cost: plain data, to be pickled, sent to other ranks, planned on.

`profile_segments` (memopt/blocks/measure.py) fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassBytes:
    """Bytes of one segment's forward and backward pass, above its input and what was there before.

    Attributes:
        saved_bytes: kept between the two passes, without the segment's output.
        forward_peak_bytes: peak of the forward pass, output included.
        backward_peak_bytes: peak of the backward pass, what was kept and all gradients included.
    """

    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


@dataclass(frozen=True)
class SegmentProfile:
    """What one segment costs.

    Attributes:
        name: of the segment.
        output_bytes: the tensor handed on; 0 when it shares the input's memory.
        gradient_bytes: gradients of parameters that no later segment shares.
        kept: bytes when the inside is kept for the backward pass.
        recomputed: bytes when it is recomputed; None where that is not possible (the segment
            changes its input in place, or has no backward pass).
        has_backward: whether its output takes part in autograd; not so in a frozen start.
        forward_us: time of the forward pass, which is what recomputing it costs.
        backward_us: time of the backward pass.
    """

    name: str
    output_bytes: int
    gradient_bytes: int
    kept: PassBytes
    recomputed: PassBytes | None
    has_backward: bool
    forward_us: int
    backward_us: int


@dataclass(frozen=True)
class ChainProfile:
    """What a chain of segments costs at one input shape.

    Attributes:
        segments: in forward order.
        input_shape: the example's; smaller batches cost less, larger ones need a new profile.
        accumulates: gradients exist before the forward pass (several micro-batches a step).
    """

    segments: tuple[SegmentProfile, ...]
    input_shape: tuple[int, ...]
    accumulates: bool
