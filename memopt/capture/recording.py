"""What a capture gives: the iteration as a graph, and what an executor needs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memopt.graph import OpGraph


class TensorView(NamedTuple):
    """A tensor by what it looks at: holds no memory.

    Attributes:
        value: number of the value; None for a tensor without a single storage (sparse ones).
        shape, stride, offset: in elements of `dtype`, as `Tensor.as_strided` takes them.
    """

    value: int | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor, value: int | None) -> TensorView:
        """Geometry of `tensor`, which looks at `value`."""
        if tensor.layout is not torch.strided:
            return cls(value, tuple(tensor.shape), (), 0, tensor.dtype, tensor.device)
        return cls(
            value,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
        )


class Call(NamedTuple):
    """One operator as it was called; lists are tuples, tensors are `TensorView`s."""

    function: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that autograd packed for backward; its ordinal is its place in `Recording.saved`.

    Attributes:
        view: what was packed. Its value is None for what has no single storage.
        packed_after: number of the last operator that ran before; -1 for none.
        released_after: number of the operator after which autograd let it go; the number of
            operators for one held beyond the iteration.
    """

    view: TensorView
    packed_after: int
    released_after: int


@dataclass(frozen=True)
class UnpackGroup:
    """Saved tensors that one node of autograd unpacks before it computes.

    Attributes:
        before: number of the operator that runs next.
        ordinals: of the saved tensors, in order of unpacking.
    """

    before: int
    ordinals: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """One training iteration, recorded.

    Attributes:
        graph: operators, values, storages, lifetimes.
        saved: by ordinal. `graph.saved` lists the values of those that have one.
        unpacks: in order of backward; a tensor comes twice in it if backward runs twice.
        program_last_use: as `graph.last_use`, were nothing saved for backward: when the program's
            own references end. None unless the saved tensors were copied (`copy_saved`).
        resting_names: numbers of the storages that were named as resting. "0.fc.weight" is of the
            first module given, "1" is the second thing given if that is a tensor.
        calls: of each operator, if asked for.
        pattern: digest of all accesses, shapes, types and constants; see `fingerprint`.
    """

    graph: OpGraph
    saved: tuple[SavedTensor, ...]
    unpacks: tuple[UnpackGroup, ...]
    program_last_use: tuple[int, ...] | None
    resting_names: Mapping[str, int]
    calls: tuple[Call, ...] | None
    pattern: str


def views(tree: Any) -> Iterator[TensorView]:
    """Tensors in the arguments or results of a call."""
    if isinstance(tree, TensorView):
        yield tree
    elif isinstance(tree, tuple):
        for item in tree:
            yield from views(item)
    elif isinstance(tree, dict):
        yield from views(tuple(tree.values()))


_PLAIN = frozenset(
    {int, float, bool, str, complex, type(None)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)


def describe(tree: Any, *, with_offsets: bool) -> str:
    """Text of a call's arguments, equal in every process for equal calls; values are not in it."""
    kind = type(tree)
    if kind in _PLAIN:
        return repr(tree)
    if kind is TensorView:
        offset = tree.offset if with_offsets else 0
        return _describe_view(tree.shape, tree.stride, offset, tree.dtype, tree.device)
    if isinstance(tree, tuple):
        return f"({', '.join([describe(item, with_offsets=with_offsets) for item in tree])})"
    if isinstance(tree, dict):
        items = [f"{key}={describe(tree[key], with_offsets=with_offsets)}" for key in sorted(tree)]
        return f"({', '.join(items)})"
    return kind.__name__  # generators, process groups: they would print their address


@lru_cache(maxsize=10_000)
def _describe_view(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> str:
    return f"{dtype}{shape}{stride}{f'+{offset}' if offset else ''}@{device}"
