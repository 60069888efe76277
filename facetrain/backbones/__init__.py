"""Backbones by name: `build_backbone("iresnet50", embedding_size=512)`."""

from __future__ import annotations

from collections.abc import Callable

from facetrain.backbones.arcface_weights import load_arcface_weights
from facetrain.backbones.iresnet import (
    iresnet18,
    iresnet34,
    iresnet50,
    iresnet100,
    iresnet200,
)
from facetrain.backbones.mobilefacenet import (
    mobilefacenet,
    mobilefacenet_large,
    mobilefacenet_small,
    mobilefacenet_tiny,
)
from facetrain.backbones.segments import Backbone, Segment
from facetrain.errors import FacetrainError

__all__ = ["BACKBONES", "Backbone", "Segment", "build_backbone", "load_arcface_weights"]

_MAX_EMBEDDING_SIZE = 1 << 16

BACKBONES: dict[str, Callable[[int, float], Backbone]] = {
    "iresnet18": iresnet18,
    "iresnet34": iresnet34,
    "iresnet50": iresnet50,
    "iresnet100": iresnet100,
    "iresnet200": iresnet200,
    "mobilefacenet": mobilefacenet,
    "mobilefacenet_large": mobilefacenet_large,
    "mobilefacenet_small": mobilefacenet_small,
    "mobilefacenet_tiny": mobilefacenet_tiny,
}


def build_backbone(name: str, embedding_size: int, dropout: float = 0.0) -> Backbone:
    """A freshly initialised backbone (torch's global generator).

    Raises:
        FacetrainError: unknown name, an embedding size or a dropout out of range.
    """
    if name not in BACKBONES:
        raise FacetrainError(f"backbone {name!r} is unknown; choose one of {', '.join(BACKBONES)}")
    if not 1 <= embedding_size <= _MAX_EMBEDDING_SIZE:
        raise FacetrainError(f"embedding_size {embedding_size}: must be 1 to {_MAX_EMBEDDING_SIZE}")
    if not 0.0 <= dropout < 1.0:
        raise FacetrainError(f"dropout {dropout}: must be in [0, 1)")
    return BACKBONES[name](embedding_size, dropout)
