"""How pixels become a network's input: x -> (x - mean) / std, in RGB or BGR order.

One value, stored in every checkpoint and printed with every evaluation: a model that is fed another
colour order or scale than it was trained with loses accuracy without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from facetrain.errors import FacetrainError

COLORS = ("rgb", "bgr")
_MAX_IMAGE_SIZE = 4096


@dataclass(frozen=True)
class Preprocessing:
    """What a network expects of an aligned face.

    Attributes:
        color: channel order of the network's input, "rgb" or "bgr"; images are RGB up to here.
        mean: subtracted from pixel values 0..255.
        std: the result is divided by it.
        image_size: height and width in pixels.

    Raises:
        FacetrainError: a value that cannot be used.
    """

    color: str = "rgb"
    mean: float = 127.5
    std: float = 127.5
    image_size: int = 112

    def __post_init__(self) -> None:
        if self.color not in COLORS:
            raise FacetrainError(f"preprocessing color {self.color!r}: must be rgb or bgr")
        if not 0.0 <= self.mean <= 255.0:
            raise FacetrainError(f"preprocessing mean {self.mean}: must be a pixel value, 0 to 255")
        if not 0.0 < self.std <= 255.0:
            raise FacetrainError(f"preprocessing std {self.std}: must be above 0, at most 255")
        if not 1 <= self.image_size <= _MAX_IMAGE_SIZE:
            raise FacetrainError(
                f"preprocessing image_size {self.image_size}: must be 1 to {_MAX_IMAGE_SIZE}"
            )

    def normalise(self, images: Tensor) -> Tensor:
        """Network input, float32 [B, 3, H, W], of uint8 RGB images [B, 3, H, W].

        Memory format and device stay as they are.

        Raises:
            FacetrainError: images that are not uint8, or of another shape than expected.
        """
        expected = (3, self.image_size, self.image_size)
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1:] != expected:
            raise FacetrainError(
                f"images {images.dtype} {list(images.shape)}: expected uint8 "
                f"[B, 3, {self.image_size}, {self.image_size}]; decode and align them to that size"
            )
        if self.color == "bgr":
            images = images.flip(1)
        return images.to(torch.float32).sub_(self.mean).div_(self.std)

    def describe(self) -> str:
        """One line for a report, such as "rgb, (x - 127.5) / 127.5, 112x112"."""
        size = self.image_size
        return f"{self.color}, (x - {self.mean:g}) / {self.std:g}, {size}x{size}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Inverse of `to_dict`.

        Raises:
            FacetrainError: missing or unknown fields, or values that cannot be used.
        """
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise FacetrainError(
                f"preprocessing has the fields {sorted(map(str, values))}, expected {sorted(names)}"
            )
        try:
            return cls(
                color=str(values["color"]),
                mean=float(values["mean"]),
                std=float(values["std"]),
                image_size=int(values["image_size"]),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise FacetrainError(f"preprocessing {dict(values)}: {error}") from error
