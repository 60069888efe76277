"""Weights published by arcface_torch: a bare state dict, read without executing code from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facetrain.backbones.segments import Backbone
from facetrain.errors import FacetrainError

_NAMES_SHOWN = 3


def read_torch_file(path: Path) -> Any:
    """What `torch.save` wrote to `path`, read onto the CPU; only tensors and plain containers.

    Raises:
        FacetrainError: absent, cut short, not a torch file, or holding objects that would run code.
    """
    if not path.is_file():
        raise FacetrainError(f"model file {path}: no such file; check the path")
    try:
        # Of an odd pickle torch also warns; the error says it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    # torch reports damage by whichever layer meets it first: zip reader, unpickler or tensor maker.
    except Exception as error:
        raise FacetrainError(
            f"model file {path}: {why_unreadable(path, error)}; write or download it again"
        ) from error


def why_unreadable(path: Path, error: Exception) -> str:
    """Why `torch.load` with weights_only raised `error`, which itself speaks of its own parts."""
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror})"
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return "is empty"
    # Either a zip archive or, before torch 1.6, pickles one after the other.
    if start != b"PK" and start[:1] != b"\x80":
        return "not a torch file"
    if isinstance(error, RuntimeError | EOFError):
        return "damaged, cut short, or not a torch file"
    return "damaged, or holds more than tensors and plain values, which is not read"


def load_arcface_weights(backbone: Backbone, path: Path) -> None:
    """Loads an arcface_torch state dict into `backbone`, in place; every tensor must match.

    Raises:
        FacetrainError: unreadable file, or names or shapes that are not those of `backbone`.
    """
    load_state(backbone, read_arcface_state(path), path)


def read_arcface_state(path: Path) -> dict[str, Tensor]:
    """State dict in an arcface_torch file, without the `module.` that a wrapped model writes."""
    return arcface_state(read_torch_file(path), path)


def arcface_state(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict that `content` of a file is; `path` is for the message.

    Raises:
        FacetrainError: it is none.
    """
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise FacetrainError(
            f"model file {path}: not a state dict (names to tensors); "
            "pass the backbone.pth or model.pt that arcface_torch wrote"
        )
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def load_state(backbone: Backbone, state: Mapping[str, Tensor], path: Path) -> None:
    """Copies `state` into `backbone`; `path` is for the message.

    Raises:
        FacetrainError: a name is missing or unknown, or a shape differs.
    """
    own = backbone.state_dict()
    problems = []
    for title, names in (("missing", own.keys() - state.keys()), ("unknown", state.keys() - own)):
        if names:
            problems.append(f"{len(names)} {title} ({_few(sorted(names))})")
    wrong = [
        f"{name} {list(state[name].shape)}, expected {list(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    wrong += [
        f"{name} {str(state[name].dtype).removeprefix('torch.')} {state[name].layout}"
        for name in own
        if name in state and not _is_like(state[name], own[name])
    ]
    if wrong:
        problems.append(f"{len(wrong)} of another shape or kind ({_few(wrong)})")
    if problems:
        raise FacetrainError(
            f"model file {path}: its tensors are not those of {type(backbone).__name__} with "
            f"embedding size {backbone.embedding_size}: {'; '.join(problems)}; "
            "choose the backbone that the file was trained with"
        )
    backbone.load_state_dict(state, strict=True)


def _is_like(tensor: Tensor, own: Tensor) -> bool:
    """Whether the values can be copied: dense ones that are there, and of the same sort."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and tensor.is_floating_point() == own.is_floating_point()
        and not tensor.is_complex()
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
