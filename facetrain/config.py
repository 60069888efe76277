"""What a run is made of: frozen dataclasses that recipes fill in and `tyro` turns into flags.

Choices are plain strings checked in `RunConfig.problems`, not `Literal`s checked by the flag
parser, so that every wrong field is reported in one go.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from facetrain.errors import ConfigError

Tail = tyro.conf.arg(name="")

PRECISIONS = ("auto", "bf16", "fp32")
DEVICES = ("auto", "cpu", "cuda")
ENGINES = ("auto", "torch", "horovod")
SCHEDULES = ("linear", "cosine", "constant")
HEAD_PRECISIONS = ("auto", "bf16", "fp16", "fp32")
OPTIMIZERS = ("sgd", "adamw")
BAD_IMAGE_POLICIES = ("stop", "skip")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ModelConfig:
    """The backbone."""

    backbone: str = "mobilefacenet"
    """iresnet18, iresnet34, iresnet50, iresnet100, iresnet200, mobilefacenet, mobilefacenet_large,
    mobilefacenet_small or mobilefacenet_tiny."""
    embedding_size: int = 512
    """Embedding dimensions D."""
    dropout: float = 0.0
    """Dropout before the last linear layer, where the backbone has one."""
    initial_weights: Path | None = None
    """Backbone to start from: a run's folder or model.pt, or arcface_torch's backbone.pth."""


@dataclass(frozen=True)
class HeadConfig:
    """The class-sharded margin softmax head."""

    margin: str = "cosface"
    """arcface, cosface, sphereface, combined, curricularface, magface, adaface, elasticface_arc,
    elasticface_cos or uniface."""
    margin_value: float | None = None
    """The margin's main value; its paper's when not given."""
    margin_options: tuple[str, ...] = ()
    """The margin's other values, as NAME=NUMBER; see docs/margins.md."""
    margin_gradient: str = "through"
    """Gradients go through the margin's slope, or past it as if the margin were a constant."""
    scale: float = 64.0
    """Scale s of the cosines."""
    sub_centers: int = 1
    """Centers of each class, of which the nearest counts."""
    sample_rate: float = 1.0
    """Share of the classes that take part in each step (Partial FC); below 1 the objective
    changes."""
    interclass_filtering_threshold: float = 0.0
    """Cosines to other classes above it count as 0: likely the same person twice; 0 = off."""
    head_schedule: str = "auto"
    """Way through the logits: row_chunks, class_tiles, or auto = the fastest in --head-memory."""
    chunk_rows: int = 0
    """Rows of the global batch whose logits exist at a time; 0 = chosen."""
    tile_classes: int = 0
    """Classes of one tile of the logits; 0 = chosen."""
    head_memory: str | None = None
    """Bytes that a step of the head may take beyond its centers and their optimizer state, such
    as 2GiB; default: a quarter of what is free beside these."""
    head_precision: str = "auto"
    """Products of the head: fp32, bf16, fp16, or auto = as the backbone."""
    center_momentum: str = "fp32"
    """Momentum of the centers is stored as fp32 or bf16; with SGD."""
    max_center_gradient_norm: float = 0.0
    """Gradients of the centers above this L2 norm are scaled down to it; 0 = never."""
    head_ranks: int = 0
    """Processes that share one copy of the class centers; 0 = all; 1 = each process has all of
    them. Copies are kept equal by summing their gradients."""
    initial_centers: Path | None = None
    """Folder of arcface_torch's per-rank head files to start from; not read with --resume."""

    def margin_arguments(self) -> dict[str, float]:
        """The margin's values by name.

        Raises:
            ValueError: an option without a number.
        """
        options = [option.partition("=") for option in self.margin_options]
        values = {name: float(number) for name, _, number in options}
        return values if self.margin_value is None else {**values, "value": self.margin_value}

    def margin_problems(self) -> list[str]:
        """What is wrong with the margin's values, by flag."""
        from facetrain.margins import margin_problems

        given = f"--margin-options {' '.join(self.margin_options)}"
        try:
            values = self.margin_arguments()
        except ValueError:
            return [f"{given}: each must be NAME=NUMBER"]
        names = [option.partition("=")[0] for option in self.margin_options]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            return [f"{given}: {', '.join(twice)} must be given once"]
        if "value" in names and self.margin_value is not None:
            return [f"{given}: value is --margin-value, {self.margin_value:g} here; use that alone"]
        flags = {name: f"--margin-options {name}=" for name in values}
        if self.margin_value is not None:
            flags["value"] = "--margin-value "
        infinite = [
            f"{flags[name]}{value}: must be a finite number"
            for name, value in values.items()
            if not math.isfinite(value)
        ]
        return infinite or margin_problems(self.margin, values, flags)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer; the schedule follows from the data and the batch."""

    optimizer: str = "sgd"
    """sgd or adamw, of backbone and class centers."""
    epochs: float = 20.0
    """Passes over the training images."""
    global_batch_size: int = 128
    """Images per optimizer step, over all processes and micro-batches."""
    micro_batches: int = 1
    """Gradient accumulation: parts a process cuts its share of the batch into."""
    lr: float = 0.1
    """Peak learning rate per 1024 images of global batch; scaled linearly to yours."""
    schedule: str = "linear"
    """After warm-up: linear or cosine decay to 0 per step, or constant."""
    warmup_epochs: float = 0.0
    """Epochs of linear warm-up."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """L2 penalty (sgd) or decoupled decay (adamw), of every parameter; of centers in use."""
    max_gradient_norm: float = 5.0
    """Backbone gradients above this L2 norm are scaled down to it; 0 = never."""
    zero_stage: int = 0
    """What of the backbone each process has a part of only: 0 nothing, 1 optimizer state, 2 that
    and gradients, and weights between steps, 3 weights within a step too (ZeRO)."""
    zero_keeps: tuple[str, ...] = ()
    """Blocks whose gathered weights are kept for the backward pass, with --zero-stage 3."""

    @property
    def largest_micro_batch(self) -> int:
        """Rows of all processes that are worked on together."""
        return -(-self.global_batch_size // self.micro_batches)


@dataclass(frozen=True)
class DataConfig:
    """How images are read."""

    transforms: tuple[str, ...] = ("flip",)
    """Augmentations in order: flip, color, shift_scale, blur, cutout, grey, crop, low_resolution,
    jpeg, mask."""
    order: str = "shuffle"
    """Order of the images: shuffle (each once per epoch), or balanced (each identity as often)."""
    images_in_a_row: int | None = None
    """Images of an identity in a row, with --order balanced; default 4."""
    num_workers: int = 0
    """Loader processes per training process; 0 = read in the training process."""
    bad_images: str = "stop"
    """Unreadable, grey or wrongly sized images found before the start: stop, or skip them."""
    allow_grey: bool = False
    """Take grey images as RGB with three equal channels."""


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)

    name: str | None = None
    """Of the run's folder and report; default: the recipe's file name."""
    out: Path | None = None
    """Run folder; default runs/NAME, numbered where that exists."""
    resume: bool = False
    """Go on from the last checkpoint of the run folder."""
    num_processes: int = 1
    """Local processes to start; ignored under torchrun and horovodrun."""
    engine: str = "auto"
    """Communication engine: torch, horovod, or auto = horovod under horovodrun, else torch."""
    device: str = "auto"
    """auto, cpu or cuda."""
    precision: str = "auto"
    """Backbone products: bf16, fp32, or auto = bf16 where the device has it."""
    memory: str | None = None
    """Byte budget of the backbone's step per process, such as 300MiB; default: no limit. With
    --plan auto, of everything that a process holds in tensors; a plan.json has its own."""
    plan: str | None = None
    """How backbone and head are sharded, and what is recomputed: plan.json of facetrain plan, or
    auto = planned before the start, on what this machine is measured to do."""
    seed: int = 0
    """Of initial weights, the order of images and augmentations."""
    checkpoint_every: int = 100
    """Optimizer steps between checkpoints."""
    log_every: int = 10
    """Optimizer steps between lines of metrics.jsonl."""
    search: str = "auto"
    """Evaluation search backend: faiss, torch, or auto = faiss where installed."""
    timeout_s: float = 600.0
    """A collective that waits longer ends the run: a process died or hangs."""

    def problems(self) -> list[str]:
        """Every field that cannot be used: one line each, naming field, value, what is allowed."""
        from facetrain.backbones import BACKBONES
        from facetrain.classifier.schedule import SCHEDULES as HEAD_SCHEDULES
        from facetrain.distributed.launch import most_processes
        from facetrain.margins import MARGINS
        from facetrain.memory import parse_bytes
        from facetrain_datasets.orders import ORDERS
        from facetrain_datasets.transforms import TRANSFORMS

        found: list[str] = []

        def allow(flag: str, value: object, fine: bool, allowed: str) -> None:
            if isinstance(value, float) and not math.isfinite(value):
                found.append(f"--{flag} {value}: must be a finite number")
            elif not fine:
                found.append(f"--{flag} {value}: must be {allowed}")

        def choice(flag: str, value: str, known: object) -> None:
            names = list(known)  # type: ignore[call-overload]
            allow(flag, value, value in names, "one of " + ", ".join(names))

        model, head, optim, data = self.model, self.head, self.optim, self.data
        choice("backbone", model.backbone, BACKBONES)
        allow("embedding-size", model.embedding_size, model.embedding_size >= 2, "at least 2")
        allow("dropout", model.dropout, 0 <= model.dropout < 1, "in [0, 1)")
        choice("margin", head.margin, MARGINS)
        if head.margin in MARGINS:
            found.extend(head.margin_problems())
        choice("margin-gradient", head.margin_gradient, ("through", "past"))
        allow("scale", head.scale, 0 < head.scale <= 1000, "in (0, 1000]")
        allow("sub-centers", head.sub_centers, 1 <= head.sub_centers <= 255, "from 1 to 255")
        allow("sample-rate", head.sample_rate, 0 < head.sample_rate <= 1, "in (0, 1]")
        threshold = head.interclass_filtering_threshold
        allow("interclass-filtering-threshold", threshold, 0 <= threshold <= 1, "in [0, 1]")
        choice("head-schedule", head.head_schedule, ("auto", *HEAD_SCHEDULES))
        allow("chunk-rows", head.chunk_rows, head.chunk_rows >= 0, "0 (chosen) or more")
        allow("tile-classes", head.tile_classes, head.tile_classes >= 0, "0 (chosen) or more")
        choice("head-precision", head.head_precision, HEAD_PRECISIONS)
        choice("center-momentum", head.center_momentum, ("fp32", "bf16"))
        norm = head.max_center_gradient_norm
        allow("max-center-gradient-norm", norm, norm >= 0, "0 (never) or more")
        ranks = head.head_ranks
        allow("head-ranks", ranks, 0 <= ranks <= 2**16, "0 (all processes) or at most 65536")
        choice("optimizer", optim.optimizer, OPTIMIZERS)
        allow("epochs", optim.epochs, optim.epochs > 0, "above 0")
        batch = optim.global_batch_size
        allow("global-batch-size", batch, batch >= 1, "at least 1")
        micro = optim.micro_batches
        allow("micro-batches", micro, 1 <= micro <= max(batch, 1), "from 1 to --global-batch-size")
        allow("lr", optim.lr, optim.lr > 0, "above 0")
        choice("schedule", optim.schedule, SCHEDULES)
        allow(
            "warmup-epochs",
            optim.warmup_epochs,
            0 <= optim.warmup_epochs < max(1e-9, optim.epochs),
            f"from 0 to below --epochs, which is {optim.epochs:g}",
        )
        allow("momentum", optim.momentum, 0 <= optim.momentum < 1, "in [0, 1)")
        allow("weight-decay", optim.weight_decay, 0 <= optim.weight_decay < 1, "in [0, 1)")
        norm = optim.max_gradient_norm
        allow("max-gradient-norm", norm, norm >= 0, "0 (never) or more")
        allow("zero-stage", optim.zero_stage, optim.zero_stage in range(4), "0, 1, 2 or 3")
        allow("num-workers", data.num_workers, 0 <= data.num_workers <= 1024, "0 to 1024")
        for transform in data.transforms:
            choice("transforms", transform, TRANSFORMS)
        choice("order", data.order, ORDERS)
        row = data.images_in_a_row
        allow("images-in-a-row", row, row is None or row >= 1, "at least 1")
        choice("bad-images", data.bad_images, BAD_IMAGE_POLICIES)
        allow(
            "name",
            repr(self.name),
            self.name is None or _NAME.fullmatch(self.name) is not None,
            "letters, digits, '.', '_' and '-', the first a letter or digit",
        )
        most = most_processes()
        allow(
            "num-processes",
            self.num_processes,
            1 <= self.num_processes <= most,
            f"from 1 to {most} on this machine",
        )
        choice("engine", self.engine, ENGINES)
        choice("device", self.device, DEVICES)
        choice("precision", self.precision, PRECISIONS)
        choice("search", self.search, ("auto", "faiss", "torch"))
        allow("seed", self.seed, 0 <= self.seed < 2**31, "from 0 to 2147483647")
        allow("checkpoint-every", self.checkpoint_every, self.checkpoint_every >= 1, "at least 1")
        allow("log-every", self.log_every, self.log_every >= 1, "at least 1")
        allow("timeout-s", self.timeout_s, 1 <= self.timeout_s <= 1e6, "from 1 to 1000000")
        for flag, size in (("memory", self.memory), ("head-memory", head.head_memory)):
            try:
                if size is not None:
                    parse_bytes(size)
            except ValueError as error:
                found.append(f"--{flag} {size}: {error}")
        return found + self._conflicts()

    def _conflicts(self) -> list[str]:
        """Options that others would leave without effect, one line each."""
        head, optim = self.head, self.optim
        found = []
        if optim.optimizer == "adamw" and optim.momentum != OptimConfig.momentum:
            found.append(
                f"--momentum {optim.momentum:g}: is SGD's; leave out with --optimizer adamw"
            )
        if head.center_momentum == "bf16" and (optim.optimizer == "adamw" or not optim.momentum):
            other = "--optimizer adamw" if optim.optimizer == "adamw" else "--momentum 0"
            found.append(
                f"--center-momentum bf16: is for SGD with momentum; leave out with {other}"
            )
        if optim.zero_keeps and optim.zero_stage != 3:
            found.append(f"--zero-keeps {' '.join(optim.zero_keeps)}: is for --zero-stage 3")
        if self.plan is not None:
            found += [
                f"--{flag} {value}: a plan chooses it; leave it out, or the plan"
                for flag, value in (
                    ("zero-stage", optim.zero_stage),
                    ("zero-keeps", " ".join(optim.zero_keeps)),
                    ("head-ranks", head.head_ranks),
                )
                if value
            ]
        if self.memory is not None and self.plan is None and optim.zero_stage >= 2:
            found.append(
                f"--memory {self.memory}: plans whole weights; use --zero-stage 0 or 1 with it"
            )
        if self.data.images_in_a_row is not None and self.data.order != "balanced":
            found.append(f"--images-in-a-row {self.data.images_in_a_row}: is for --order balanced")
        if head.initial_centers is not None and head.sub_centers > 1:
            found.append(
                f"--initial-centers {head.initial_centers}: arcface_torch's files hold one center "
                "a class; use --sub-centers 1"
            )
        return found

    def check(self) -> RunConfig:
        """This config.

        Raises:
            ConfigError: names every field that cannot be used.
        """
        if problems := self.problems():
            raise ConfigError(problems)
        return self

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values, saved with the run."""
        return _plain(dataclasses.asdict(self))  # type: ignore[return-value]


FlatRunConfig = Annotated[RunConfig, Tail]
"""A `RunConfig` whose fields become flags without a prefix."""


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
