"""Pixels to network input, and the values that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain.preprocessing import Preprocessing


def pixels(size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    nhwc = torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8, generator=generator)
    return nhwc.permute(0, 3, 1, 2)


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_normalise_equals_the_formula_per_pixel(color: str) -> None:
    images = pixels()
    result = Preprocessing(color, mean=100.0, std=50.0, image_size=8).normalise(images)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        source = channel if color == "rgb" else 2 - channel
        expected = (images[:, source].double() - 100.0) / 50.0
        torch.testing.assert_close(result[:, channel].double(), expected, rtol=1e-6, atol=1e-6)


def test_normalise_leaves_its_input_alone() -> None:
    images = pixels()
    before = images.clone()
    Preprocessing(image_size=8).normalise(images)
    assert torch.equal(images, before)


def test_default_equals_the_protocol_of_the_verification_sets() -> None:
    images = pixels()
    protocol = (images.double() / 255 - 0.5) / 0.5
    result = Preprocessing(image_size=8).normalise(images).double()
    torch.testing.assert_close(result, protocol, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "images",
    [pixels().float(), pixels(9), pixels()[:, :1], pixels()[0]],
    ids=["float", "size", "grey", "one image"],
)
def test_normalise_refuses_other_images(images: torch.Tensor) -> None:
    with pytest.raises(FacetrainError, match=r"expected uint8 \[B, 3, 8, 8\]"):
        Preprocessing(image_size=8).normalise(images)


@pytest.mark.parametrize(
    "values", [{"color": "RGB"}, {"mean": -1.0}, {"std": 0.0}, {"std": 256.0}, {"image_size": 0}]
)
def test_unusable_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FacetrainError, match=f"preprocessing {next(iter(values))}"):
        Preprocessing(**values)


def test_dict_round_trip_and_its_errors() -> None:
    value = Preprocessing("bgr", 1.0, 2.0, 96)
    assert Preprocessing.from_dict(value.to_dict()) == value
    with pytest.raises(FacetrainError, match="expected"):
        Preprocessing.from_dict({"color": "rgb"})
    with pytest.raises(FacetrainError, match="mean"):
        Preprocessing.from_dict({**value.to_dict(), "mean": "grey"})


def test_describe_names_order_scale_and_size() -> None:
    assert Preprocessing().describe() == "rgb, (x - 127.5) / 127.5, 112x112"
