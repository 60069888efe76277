"""A backbone as a chain of segments: the pieces that tools which checkpoint or pipeline cut at.

forward(x) = segments[-1].forward(... segments[0].forward(x)); the only tensor that passes from one
segment to the next is the activation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Segment(NamedTuple):
    """One link of the chain: a name, its forward function and the modules that it runs."""

    name: str
    forward: Callable[[Tensor], Tensor]
    modules: tuple[nn.Module, ...]


class Backbone(nn.Module, ABC):
    """Maps normalised images [B, 3, image_size, image_size] to embeddings [B, D], not normalised.

    A subclass lists its `segments()`; running them in order is its forward pass.
    """

    #: Height and width of the images that every backbone here is built for.
    image_size = 112
    #: State-dict name of the final projection [D, features]; its rows count the embedding's size.
    projection_name: str

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.embedding_size = embedding_size

    @abstractmethod
    def segments(self) -> list[Segment]:
        """The chain in forward order: stem, each block, head."""

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings [B, D] of normalised images [B, 3, image_size, image_size]."""
        activation = images
        for segment in self.segments():
            activation = segment.forward(activation)
        return activation
