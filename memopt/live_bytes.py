"""Exact count of the bytes of live tensors created in a region of code, without polling.

    with LiveBytes() as live:
        loss = model(images).sum()
        loss.backward()
    print(live.peak_bytes)

A `TorchDispatchMode` sees every operator, in the backward pass too. Each storage that an operator
creates gets a small object as an attribute; PyTorch keeps that attribute exactly as long as the
storage, so its finaliser marks the moment the memory returns, whoever held the last reference.

Counted are storages (views once), at the size asked for. Not counted is what no tensor shows:
workspace inside a kernel, the allocator's rounding and fragmentation, and what existed before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Allocation:
    """Lives as long as the storage it is an attribute of; its end is the storage's end."""

    __slots__ = ("counter", "num_bytes")

    def __init__(self, counter: LiveBytes, num_bytes: int) -> None:
        self.counter = counter
        self.num_bytes = num_bytes
        counter._grow(num_bytes)

    def resize(self, num_bytes: int) -> None:
        self.counter._grow(num_bytes - self.num_bytes)
        self.num_bytes = num_bytes

    def __del__(self) -> None:
        self.counter._grow(-self.num_bytes)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages created while it is active; they count until they die.

    Counters nest, each counting for itself. About 10 us an operator: for measuring a step, not for
    every step.

    Attributes:
        live_bytes: bytes alive now. Goes on falling after the region, as tensors die.
        peak_bytes: largest `live_bytes` since the start or the last `reset_peak`.
        timeline: `live_bytes` after each operator, if asked for.
        paused_seconds: time spent in `paused`.
    """

    def __init__(self, *, record_timeline: bool = False) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.timeline: list[int] = []
        self.paused_seconds = 0.0
        self._record_timeline = record_timeline
        self._paused = False
        # Unique while any storage carries it: an allocation keeps its counter alive.
        self._attribute = f"_live_bytes_{id(self)}"

    def reset_peak(self) -> None:
        """Starts a new peak at what is alive now."""
        self.peak_bytes = self.live_bytes

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is created inside is never counted; what dies inside still leaves the count."""
        before, self._paused = self._paused, True
        start = time.perf_counter()
        try:
            yield
        finally:
            self._paused = before
            if not before:
                self.paused_seconds += time.perf_counter() - start

    def counted_bytes(self, tensor: Tensor) -> int:
        """Bytes this counter holds for the storage of `tensor`; 0 if it was made elsewhere."""
        allocation = getattr(tensor.untyped_storage(), self._attribute, None)
        return 0 if allocation is None else allocation.num_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._paused:
            self._count(result, args, kwargs)
        if self._record_timeline:
            self.timeline.append(self.live_bytes)
        return result

    def _count(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given: set[int] | None = None
        for tensor in _strided_tensors(result):
            storage = tensor.untyped_storage()
            allocation = getattr(storage, self._attribute, None)
            if allocation is not None:
                if allocation.num_bytes != storage.nbytes():
                    allocation.resize(storage.nbytes())
                continue
            if given is None:
                given = {t.untyped_storage()._cdata for t in _strided_tensors((args, kwargs))}
            if storage._cdata not in given:  # else a view, or an in-place result, of outside memory
                setattr(storage, self._attribute, _Allocation(self, storage.nbytes()))

    def _grow(self, num_bytes: int) -> None:
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def _strided_tensors(tree: Any) -> Iterator[Tensor]:
    """Tensors in nested containers that have one storage (sparse ones have none)."""
    if isinstance(tree, Tensor):
        tree = (tree,)
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            yield leaf
