"""What a segment is: one link of a chain of functions, with the modules that it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor, nn

_T = TypeVar("_T")


class Segment(Protocol):
    """One link of the chain: network(x) = last.forward(... first.forward(x)).

    One tensor goes in and one comes out; the modules hold every parameter and buffer it uses.
    """

    @property
    def name(self) -> str: ...

    @property
    def forward(self) -> Callable[[Tensor], Tensor]: ...

    @property
    def modules(self) -> Sequence[nn.Module]: ...


def submodules(segment: Segment) -> Iterator[nn.Module]:
    """Every module of the segment at any depth, each once."""
    return _unique(module for root in segment.modules for module in root.modules())


def parameters(segment: Segment) -> list[nn.Parameter]:
    """Every parameter of the segment that gets a gradient, each once."""
    every = (p for module in submodules(segment) for p in module.parameters(recurse=False))
    return [parameter for parameter in _unique(every) if parameter.requires_grad]


def _unique(items: Iterable[_T]) -> Iterator[_T]:
    return iter({id(item): item for item in items}.values())
