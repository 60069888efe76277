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
ENGINES = ("torch",)
SCHEDULES = ("linear", "cosine", "constant")
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


@dataclass(frozen=True)
class HeadConfig:
    """The class-sharded margin softmax head."""

    margin: str = "cosface"
    """arcface or cosface."""
    margin_value: float | None = None
    """The margin; its paper's value when not given."""
    scale: float = 64.0
    """Scale s of the cosines."""
    chunk_rows: int = 0
    """Rows of the global batch whose logits exist at a time; 0 = as many as fit 64 MiB."""


@dataclass(frozen=True)
class OptimConfig:
    """SGD with momentum; the schedule follows from the data and the batch."""

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
    """L2 penalty, of every parameter."""
    max_gradient_norm: float = 5.0
    """Backbone gradients above this L2 norm are scaled down to it; 0 = never."""


@dataclass(frozen=True)
class DataConfig:
    """How images are read."""

    transforms: tuple[str, ...] = ("flip",)
    """Augmentations in order: flip, color, shift_scale, blur, cutout, grey."""
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
    """Local processes to start; ignored under torchrun."""
    engine: str = "torch"
    """Communication engine: torch."""
    device: str = "auto"
    """auto, cpu or cuda."""
    precision: str = "auto"
    """Backbone products: bf16, fp32, or auto = bf16 where the device has it."""
    memory: str | None = None
    """Byte budget of the backbone's step per process, such as 300MiB; default: no limit."""
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
        from facetrain.distributed.launch import most_processes
        from facetrain.margins import MARGINS
        from facetrain.memory import parse_bytes
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
        allow("scale", head.scale, 0 < head.scale <= 1000, "in (0, 1000]")
        allow("chunk-rows", head.chunk_rows, head.chunk_rows >= 0, "0 (automatic) or more")
        if head.margin_value is not None and head.margin in MARGINS:
            low, high = MARGINS[head.margin].value_range
            allow(
                "margin-value",
                head.margin_value,
                low <= head.margin_value <= high,
                f"in [{low:g}, {high:g}] for {head.margin}",
            )
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
        allow("num-workers", data.num_workers, data.num_workers >= 0, "0 or more")
        for transform in data.transforms:
            choice("transforms", transform, TRANSFORMS)
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
        if self.memory is not None:
            try:
                parse_bytes(self.memory)
            except ValueError as error:
                found.append(f"--memory {self.memory}: {error}")
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
