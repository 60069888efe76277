"""Margins: what is done to the cosine between an embedding and its own class center.

A margin is a pure function of the target cosine; the head multiplies by the scale afterwards.
One file each; adding one is a file, an entry in `MARGINS`, a test and a line in docs/margins.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from torch import Tensor

from facetrain.errors import FacetrainError
from facetrain.margins.arcface import ArcFace
from facetrain.margins.cosface import CosFace

__all__ = ["MARGINS", "ArcFace", "CosFace", "Margin", "build_margin"]


class Margin(Protocol):
    """Maps target cosines to what the softmax sees in their place."""

    value_range: ClassVar[tuple[float, float]]
    """Smallest and largest margin allowed."""

    @property
    def bound(self) -> float:
        """No margin cosine, of a target or of another class, is larger."""

    def __call__(self, target_cosine: Tensor) -> Tensor:
        """Margin cosines of the same shape; differentiable on [-1, 1]."""


MARGINS: dict[str, Any] = {"arcface": ArcFace, "cosface": CosFace}


def build_margin(name: str, value: float | None = None) -> Margin:
    """The margin of that name, with its paper's value unless given.

    Raises:
        FacetrainError: unknown name, or value out of the margin's range.
    """
    if name not in MARGINS:
        raise FacetrainError(f"margin {name!r} is unknown: use one of {', '.join(sorted(MARGINS))}")
    kind = MARGINS[name]
    if value is None:
        return kind()
    low, high = kind.value_range
    if not low <= value <= high:
        raise FacetrainError(f"margin value {value} of {name}: must be in [{low:g}, {high:g}]")
    return kind(value)
