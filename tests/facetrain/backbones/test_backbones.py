"""Every backbone: segments, gradients, precision, and the errors of a wrong choice or file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from facetrain.backbones import BACKBONES, Segment, build_backbone, load_arcface_weights
from facetrain.errors import FacetrainError

QUICK = ("iresnet18", "mobilefacenet_tiny")
NUM_SEGMENTS = {
    "iresnet18": 10,
    "iresnet34": 18,
    "iresnet50": 26,
    "iresnet100": 51,
    "iresnet200": 100,
    "mobilefacenet": 18,
    "mobilefacenet_large": 31,
    "mobilefacenet_small": 12,
    "mobilefacenet_tiny": 10,
}


def images(num: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num, 3, 112, 112, generator=generator) * 2 - 1


@pytest.mark.parametrize("name", BACKBONES)
def test_segments_cover_every_module_once(name: str) -> None:
    with torch.device("meta"):
        backbone = build_backbone(name, 64)
    segments = backbone.segments()
    assert all(isinstance(segment, Segment) for segment in segments)
    names = [segment.name for segment in segments]
    assert len(names) == NUM_SEGMENTS[name] == len(set(names))
    assert (names[0], names[-1]) == ("stem", "head")
    leaves = [
        leaf
        for segment in segments
        for module in segment.modules
        for leaf in module.modules()
        if not list(leaf.children())
    ]
    expected = {leaf for leaf in backbone.modules() if not list(leaf.children())}
    assert len(leaves) == len(set(leaves))
    # A dropout of probability 0 may stand outside; every parameter and buffer must be inside.
    assert {m for m in expected if list(m.parameters()) or list(m.buffers())} <= set(leaves)


@pytest.mark.parametrize("name", QUICK)
def test_forward_is_the_composition_of_segments(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, 32).eval()
    with torch.no_grad():
        x = images()
        expected = backbone(x)
        for segment in backbone.segments():
            before = x.clone()
            after = segment.forward(x)
            assert torch.equal(x, before), f"{segment.name} changed its input"
            x = after
    assert torch.equal(x, expected)
    assert expected.shape == (2, 32)


@pytest.mark.parametrize("name", QUICK)
def test_every_trainable_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, 16, dropout=0.1)
    backbone(images(4)).square().sum().backward()
    without = [
        key
        for key, value in backbone.named_parameters()
        if value.requires_grad and value.grad is None
    ]
    assert without == []


def test_embedding_is_fp32_under_bf16_autocast() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("mobilefacenet_tiny", 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedding = backbone(images().to(memory_format=torch.channels_last))
    assert embedding.dtype == torch.float32
    assert bool(embedding.isfinite().all())
    embedding.sum().backward()


def test_iresnet_head_projects_in_fp32_under_bf16_autocast() -> None:
    torch.manual_seed(0)
    head = build_backbone("iresnet18", 16).eval().segments()[-1].forward
    x = torch.randn(2, 512, 7, 7).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedding = head(x)
    assert embedding.dtype == torch.float32
    torch.testing.assert_close(embedding, head(x.float()), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["iresnet18", "mobilefacenet_tiny"])
def test_dropout_acts_in_training_only(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, 16, dropout=0.5)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eval()
    assert not torch.equal(backbone(images()), backbone(images()))
    backbone.eval()
    assert torch.equal(backbone(images()), backbone(images()))


def test_initialisation_is_that_of_the_papers_code() -> None:
    torch.manual_seed(0)
    iresnet = build_backbone("iresnet18", 64)
    convolution = iresnet.get_parameter("layer4.0.conv2.weight")
    assert convolution.std().item() == pytest.approx(0.1, rel=0.01)
    mobile = build_backbone("mobilefacenet", 64)
    pointwise = mobile.get_parameter("conv_sep.layers.0.weight")  # fan_out = 512
    assert pointwise.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)


def test_unknown_backbone_lists_the_known() -> None:
    with pytest.raises(FacetrainError, match=r"'resnet50' is unknown.*iresnet50.*mobilefacenet"):
        build_backbone("resnet50", 512)


@pytest.mark.parametrize(("size", "dropout"), [(0, 0.0), (128, 1.0), (128, -0.1)])
def test_impossible_sizes_are_refused(size: int, dropout: float) -> None:
    with pytest.raises(FacetrainError, match="must be"):
        build_backbone("mobilefacenet_tiny", size, dropout)


def test_arcface_weights_load_with_and_without_module_prefix(tmp_path: Path) -> None:
    source = build_backbone("mobilefacenet_tiny", 16)
    for prefix in ("", "module."):
        file = tmp_path / "backbone.pth"
        torch.save({prefix + name: value for name, value in source.state_dict().items()}, file)
        target = build_backbone("mobilefacenet_tiny", 16)
        load_arcface_weights(target, file)
        for name, value in source.state_dict().items():
            assert torch.equal(target.state_dict()[name], value)


def test_arcface_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "backbone.pth"
    torch.save(build_backbone("mobilefacenet_small", 16).state_dict(), file)
    target = build_backbone("mobilefacenet_tiny", 16)
    with pytest.raises(FacetrainError, match=r"backbone\.pth.*unknown.*another shape"):
        load_arcface_weights(target, file)


def test_arcface_weights_that_are_no_state_dict_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "backbone.pth"
    torch.save({"epoch": 3}, file)
    with pytest.raises(FacetrainError, match="not a state dict"):
        load_arcface_weights(build_backbone("mobilefacenet_tiny", 16), file)
