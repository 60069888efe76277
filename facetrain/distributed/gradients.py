"""Sums the backbone's gradients over the ranks while the backward pass still runs.

Gradients move into flat buckets in reverse parameter order (about the order in which backward
produces them); a full bucket is all-reduced in the background. Buckets never change and are sent
in a fixed order, so sums are formed in the same order on every step of every run: a resumed run
repeats the uninterrupted one to the bit, which DDP's rebuilt buckets do not promise, and the same
code serves every engine. Sends 2 S (P - 1) / P bytes a step, S the gradients' size; takes one
bucket of memory while gradients move into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from facetrain.distributed.communicator import Communicator, Pending

DEFAULT_BUCKET_BYTES = 25 * 2**20


class GradientSum:
    """All-reduces (sum) the `.grad` of parameters during one backward pass.

    Use as a context around the backward pass of the step's last micro-batch::

        with gradient_sum:
            loss.backward()

    Args:
        parameters: those that get gradients, the same on every rank. One that got none on this
            rank counts as zero.
        communicator: whose ranks are summed.
        bucket_bytes: size at which a bucket is sent.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        communicator: Communicator,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> None:
        self._communicator = communicator
        self._buckets = _cut(parameters, bucket_bytes)
        self._bucket_of = {
            id(parameter): index
            for index, bucket in enumerate(self._buckets)
            for parameter in bucket
        }
        self._active = False
        self._missing: list[int] = []
        self._sent: list[Pending] = []
        if communicator.world_size > 1:
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def __enter__(self) -> GradientSum:
        self._active = self._communicator.world_size > 1
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._active:
            return
        self._active = False
        if error is not None:
            return
        while len(self._sent) < len(self._buckets):
            self._send(len(self._sent))
        for pending in self._sent:
            pending.wait()

    @torch.no_grad()
    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._active:
            return
        self._missing[self._bucket_of[id(parameter)]] -= 1
        # In bucket order only: every rank must start the same collective.
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send(len(self._sent))

    @torch.no_grad()
    def _send(self, index: int) -> None:
        bucket = self._buckets[index]
        flat = bucket[0].new_zeros(sum(parameter.numel() for parameter in bucket))
        first = 0
        for parameter in bucket:
            # From here on the gradient lives in the bucket, laid out as its parameter.
            values = flat.as_strided(parameter.shape, parameter.stride(), first)
            if parameter.grad is not None:
                values.copy_(parameter.grad)
            parameter.grad = values
            first += parameter.numel()
        self._sent.append(self._communicator.all_reduce_async(flat))


def largest_bucket_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Memory that a `GradientSum` of these parameters takes while gradients move, in bytes."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return max(
        (sum(p.numel() * p.element_size() for p in bucket))
        for bucket in _cut(trained, DEFAULT_BUCKET_BYTES)
    )


def _cut(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        same_kind = bool(buckets) and buckets[-1][0].dtype == parameter.dtype
        if not same_kind or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= size
    return buckets
