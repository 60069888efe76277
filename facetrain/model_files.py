"""Files that hold a model, and what is made of them.

`load_embedder(path)` takes a file written by `save_model`, a run directory that holds one
(model.pt), one of a run's checkpoints, an ONNX file, or a state dict of arcface_torch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facetrain.backbones import Backbone, build_backbone
from facetrain.backbones.arcface_weights import (
    arcface_state,
    load_state,
    read_arcface_state,
    read_torch_file,
)
from facetrain.checkpoint import (
    CHECKPOINTS,
    CheckpointFolder,
    save_tensors,
    whole_checkpoint_steps,
)
from facetrain.device import device_for
from facetrain.distributed.single import SingleCommunicator
from facetrain.distributed.world import World
from facetrain.embedder import Embedder, OnnxEmbedder, TorchEmbedder
from facetrain.errors import FacetrainError
from facetrain.preprocessing import Preprocessing

MODEL_FORMAT = "facetrain-model"
MODEL_VERSION = 1
MODEL_FILE = "model.pt"


def save_model(
    path: Path, backbone_name: str, backbone: Backbone, preprocessing: Preprocessing
) -> None:
    """Writes what is needed to embed faces; readers see the old file or the whole new one."""
    content = {
        "format": MODEL_FORMAT,
        "version": MODEL_VERSION,
        "backbone": backbone_name,
        "embedding_size": backbone.embedding_size,
        "preprocessing": preprocessing.to_dict(),
        "state_dict": {name: tensor.cpu() for name, tensor in backbone.state_dict().items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        save_tensors(content, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_model(path: Path, device: torch.device | str = "cpu") -> TorchEmbedder:
    """The model that `save_model` wrote, on `device`; no code in the file is executed.

    Raises:
        FacetrainError: absent, damaged, of another format, or with tensors that do not fit.
    """
    content = read_torch_file(path)
    if not isinstance(content, dict) or content.get("format") != MODEL_FORMAT:
        raise FacetrainError(
            f"model file {path}: not a facetrain model; pass the {MODEL_FILE} of a run, an .onnx "
            "file, or an arcface_torch state dict together with the name of its backbone"
        )
    if content.get("version") != MODEL_VERSION:
        raise FacetrainError(
            f"model file {path}: format version {content.get('version')}, this release reads "
            f"{MODEL_VERSION}; install the release that wrote it"
        )
    fields: dict[str, type] = {
        "backbone": str,
        "embedding_size": int,
        "preprocessing": dict,
        "state_dict": dict,
    }
    wrong = [name for name, kind in fields.items() if type(content.get(name)) is not kind]
    if not wrong and not all(
        isinstance(name, str) and isinstance(tensor, Tensor)
        for name, tensor in content["state_dict"].items()
    ):
        wrong = ["state_dict"]
    if wrong:
        raise FacetrainError(
            f"model file {path}: no usable {', '.join(wrong)}; write it again with save_model"
        )
    values: dict[str, Any] = content
    try:
        preprocessing = Preprocessing.from_dict(values["preprocessing"])
        backbone = build_backbone(values["backbone"], values["embedding_size"])
    except FacetrainError as error:
        raise FacetrainError(f"model file {path}: {error}") from error
    if preprocessing.image_size != backbone.image_size:
        raise FacetrainError(
            f"model file {path}: images of {preprocessing.image_size} pixels for a backbone that "
            f"takes {backbone.image_size}; write it again with save_model"
        )
    load_state(backbone, values["state_dict"], path)
    return TorchEmbedder(backbone.to(device), preprocessing, device, name=values["backbone"])


def load_initial_weights(backbone: Backbone, path: Path) -> None:
    """Start `backbone` from a run (its model.pt) or an arcface_torch state dict, in place.

    Args:
        path: a run's folder, or a file; `--initial-weights` in messages.

    Raises:
        FacetrainError: an unreadable file, or tensors of another backbone.
    """
    flag = f"--initial-weights {path}: "
    if path.is_dir() and not (path / MODEL_FILE).is_file():
        raise FacetrainError(
            f"{flag}holds no {MODEL_FILE}; name a run that has ended, or a model file"
        )
    file = path / MODEL_FILE if path.is_dir() else path
    try:
        content = read_torch_file(file)
        if isinstance(content, dict) and content.get("format") == MODEL_FORMAT:
            content = content.get("state_dict")
        load_state(backbone, arcface_state(content, file), file)
    except FacetrainError as error:
        raise FacetrainError(flag + str(error).removeprefix(f"model file {file}: ")) from error


def load_checkpoint_model(path: Path, device: torch.device | str = "cpu") -> TorchEmbedder:
    """The model of a checkpoint, or of the newest one in a run directory.

    Raises:
        FacetrainError: no checkpoint there, or a damaged one.
    """
    folder = path.parent
    steps = [step for step in whole_checkpoint_steps(folder) if path.name == f"step-{step:08d}"]
    if not steps:
        folder = path / CHECKPOINTS
        steps = whole_checkpoint_steps(folder)
    if not steps:
        raise FacetrainError(
            f"folder {path}: holds no {MODEL_FILE} and no checkpoint; name a run's folder, one of "
            "its checkpoints, or a model file"
        )
    facts, state = CheckpointFolder(folder, SingleCommunicator()).model(steps[-1])
    backbone = build_backbone(facts["backbone"], facts["embedding-size"])
    load_state(backbone, state, folder / f"step-{steps[-1]:08d}")
    name = f"{facts['backbone']}, step {steps[-1]:,}"
    preprocessing = Preprocessing.from_dict(facts["preprocessing"])
    return TorchEmbedder(backbone.to(device), preprocessing, device, name=name)


def load_arcface_model(
    path: Path, backbone_name: str, device: torch.device | str = "cpu"
) -> TorchEmbedder:
    """An arcface_torch state dict as an embedder; its preprocessing is the default one.

    Raises:
        FacetrainError: unknown backbone, unreadable file, or tensors of another backbone.
    """
    state = read_arcface_state(path)
    backbone = build_backbone(backbone_name, embedding_size=1)
    projection = state.get(backbone.projection_name)
    if projection is not None and projection.dim():
        backbone = build_backbone(backbone_name, embedding_size=len(projection))
    load_state(backbone, state, path)
    return TorchEmbedder(backbone.to(device), Preprocessing(), device, name=backbone_name)


def load_embedder(
    path: Path,
    *,
    device: str = "cpu",
    color: str | None = None,
    backbone: str | None = None,
) -> Embedder:
    """The embedder in a file or run directory.

    Args:
        path: an .onnx file, a file written by `save_model`, a run directory (its model.pt, or its
            newest checkpoint while it has none), a checkpoint of one, or, with `backbone`, an
            arcface_torch state dict.
        device: "cpu", "cuda", or "auto": a GPU where there is one that can run the file.
        color: channel order to feed it; None means the stored one, RGB where none is stored.
        backbone: name of the backbone of an arcface_torch state dict; None for other files.

    Raises:
        FacetrainError: whatever keeps it from being read, in one line.
    """
    if (path / MODEL_FILE).is_file():
        path = path / MODEL_FILE
    if path.suffix == ".onnx":
        if backbone is not None:
            raise FacetrainError(f"backbone {backbone!r}: an ONNX file has its own; leave it out")
        return OnnxEmbedder(path, device=device, color=color)
    torch_device, _ = device_for(device, World())
    if path.is_dir():
        embedder = load_checkpoint_model(path, torch_device)
    elif backbone is not None:
        embedder = load_arcface_model(path, backbone, torch_device)
    else:
        embedder = load_model(path, torch_device)
    if color is not None:
        embedder = replace(embedder, preprocessing=replace(embedder.preprocessing, color=color))
    return embedder
