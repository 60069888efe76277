"""Names, shapes and outputs of the backbones against arcface_torch.

The golden file was made once, by arcface_torch itself, with `python THIS_FILE ARCFACE_TORCH`, its
folder: weights and images come from NumPy alone, so both sides see the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from facetrain.backbones import BACKBONES, build_backbone

GOLDEN_FILE = Path(__file__).resolve().parents[2] / "data" / "arcface_torch_golden.json"
THEIR_NAMES = {
    "iresnet18": "r18",
    "iresnet34": "r34",
    "iresnet50": "r50",
    "iresnet100": "r100",
    "iresnet200": "r200",
    "mobilefacenet": "mbf",
    "mobilefacenet_large": "mbf_large",
}
WITH_OUTPUT = ("iresnet18", "iresnet50", "mobilefacenet", "mobilefacenet_large")
WITH_LISTING = ("iresnet18", "mobilefacenet")


def fill_(state: dict[str, Tensor]) -> None:
    """Fills parameters and buffers in place, in name order, at scales that keep signals O(1)."""
    rng = np.random.default_rng(20240229)
    for name in sorted(state):
        tensor = state[name]
        shape = tuple(tensor.shape)
        if name.endswith("num_batches_tracked"):
            continue
        if name.endswith("running_var"):
            values = rng.uniform(0.5, 1.5, shape)
        elif name.endswith(("running_mean", "bias")):
            values = rng.normal(0.0, 0.1, shape)
        elif tensor.dim() == 1:  # BatchNorm and PReLU
            values = rng.uniform(0.2, 1.0, shape)
        else:
            values = rng.normal(0.0, (2.0 / np.prod(shape[1:])) ** 0.5, shape)
        tensor.copy_(torch.from_numpy(values.astype(np.float32)))


def golden_input() -> Tensor:
    """Two normalised images [2, 3, 112, 112]."""
    values = np.random.default_rng(7).uniform(-1.0, 1.0, (2, 3, 112, 112))
    return torch.from_numpy(values.astype(np.float32))


def listing(state: dict[str, Tensor]) -> list[str]:
    """One line per tensor, in state-dict order: name and shape."""
    return [f"{name} {list(tensor.shape)}" for name, tensor in state.items()]


def describe(name: str, model: torch.nn.Module) -> dict[str, Any]:
    """What the golden file holds of one network, except for its output."""
    lines = listing(model.state_dict())
    entry: dict[str, Any] = {
        "num_tensors": len(lines),
        "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        "frozen": [key for key, value in model.named_parameters() if not value.requires_grad],
    }
    if name in WITH_LISTING:
        entry["tensors"] = lines
    return entry


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN_FILE.read_text())


@pytest.mark.parametrize("name", THEIR_NAMES)
def test_names_and_shapes_equal_arcface_torch(name: str) -> None:
    with torch.device("meta"):
        ours = describe(name, build_backbone(name, 512))
    theirs = {key: value for key, value in golden()[name].items() if key in ours}
    # The listing first: where there is one it shows the difference, the hash only that there is.
    assert ours.get("tensors") == theirs.get("tensors")
    assert ours == theirs


@pytest.mark.parametrize("name", WITH_OUTPUT)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_output_equals_arcface_torch(name: str, memory_format: torch.memory_format) -> None:
    backbone = build_backbone(name, 512).eval()
    fill_(backbone.state_dict())
    with torch.no_grad():
        output = backbone(golden_input().to(memory_format=memory_format))
    expected = golden()[name]
    scale = float(np.mean(expected["norms"])) / 512**0.5
    # fp32 through up to 50 layers on another CPU or memory format: 1e-4 of a typical coordinate.
    shown = len(expected["output"][0])
    np.testing.assert_allclose(output[:, :shown].numpy(), expected["output"], atol=1e-4 * scale)
    np.testing.assert_allclose(output.norm(dim=1).numpy(), expected["norms"], rtol=1e-5)


def test_every_backbone_is_compared_or_ours() -> None:
    ours = {"mobilefacenet_small", "mobilefacenet_tiny"}
    assert set(BACKBONES) == set(THEIR_NAMES) | ours
    assert set(golden()) == set(THEIR_NAMES)


def main(arcface_torch: str) -> None:
    sys.path.insert(0, arcface_torch)
    from backbones import get_model  # type: ignore[import-not-found]

    entries = {}
    for name, their_name in THEIR_NAMES.items():
        with torch.device("cpu" if name in WITH_OUTPUT else "meta"):
            model = get_model(their_name, fp16=False, num_features=512).eval()
        entry = describe(name, model)
        if name in WITH_OUTPUT:
            fill_(model.state_dict())
            with torch.no_grad():
                output = model(golden_input())
            entry["output"] = [[float(f"{x:.9g}") for x in row[:12]] for row in output.tolist()]
            entry["norms"] = [float(f"{x:.9g}") for x in output.norm(dim=1).tolist()]
        entries[name] = entry
    GOLDEN_FILE.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
