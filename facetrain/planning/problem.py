"""What is to be planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from facetrain.config import RunConfig
from facetrain.device import choose_precision
from facetrain.distributed.cpus import usable_cpus
from facetrain.errors import FacetrainError
from memopt.errors import MemoptError
from memopt.partition.cluster import Cluster, find_cluster

IMAGE_CHANNELS = 3
MAY_CHANGE = ("micro-batches", "momentum")


@dataclass(frozen=True)
class Problem:
    """One training step on a cluster.

    Attributes:
        config: of the run: backbone, head, optimizer.
        cluster: all its devices take part.
        num_classes: C.
        rows: images of a step on each device.
        memory_bytes: that all tensors of a device may take.
        precision: of the backbone's products under autocast; None: fp32.
        is_measured: operators are timed on this machine; otherwise from the device's rates.
        on_gpu: the devices are GPUs.
        slowdown: of measured times, where processes share this machine's cores.
        may_change: what the user lets the plan change of the result: "micro-batches" (BatchNorm
            sees fewer images at a time), "momentum" (of the centers, in bf16).
    """

    config: RunConfig
    cluster: Cluster
    num_classes: int
    rows: int
    memory_bytes: int
    precision: torch.dtype | None
    is_measured: bool = False
    on_gpu: bool = True
    slowdown: float = 1.0
    may_change: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        return self.cluster.num_devices

    def rows_of_pass(self, micro_batches: int) -> int:
        """Images of a device in the largest of so many micro-batches."""
        return -(-self.rows // micro_batches)

    @property
    def state_ratio(self) -> float:
        """Bytes of the backbone's optimizer state to a byte of weights."""
        optim = self.config.optim
        return 2.0 if optim.optimizer == "adamw" else float(optim.momentum > 0)


def named_problem(
    config: RunConfig,
    device: str,
    num_devices: int,
    num_classes: int,
    *,
    rows: int = 0,
    memory_bytes: int | None = None,
    may_change: Sequence[str] = (),
) -> Problem:
    """A step on devices known by their figures; in bf16 unless the config asks for fp32.

    Args:
        device: name of a cluster, or a YAML file that describes one.
        rows: images of each device; 0: the config's batch over all.
        memory_bytes: None: what a device has.

    Raises:
        FacetrainError: no such cluster, or one that is described wrongly.
    """
    try:
        cluster = find_cluster(device, num_devices)
    except MemoptError as error:
        raise FacetrainError(f"--device {device}: {error}") from error
    return _checked(
        Problem(
            config,
            cluster,
            num_classes,
            rows or rows_of(config, num_devices),
            cluster.device.memory_bytes if memory_bytes is None else memory_bytes,
            None if config.precision == "fp32" else torch.bfloat16,
            may_change=tuple(may_change),
        )
    )


def measured_problem(
    config: RunConfig,
    cluster: Cluster,
    device: torch.device,
    num_classes: int,
    *,
    rows: int = 0,
    memory_bytes: int | None = None,
    may_change: Sequence[str] = (),
) -> Problem:
    """A step on this machine, whose operators are timed; arguments as of `named_problem`."""
    shared = device.type == "cpu"
    return _checked(
        Problem(
            config,
            cluster,
            num_classes,
            rows or rows_of(config, cluster.num_devices),
            cluster.device.memory_bytes if memory_bytes is None else memory_bytes,
            choose_precision(config.precision, device),
            is_measured=True,
            on_gpu=not shared,
            slowdown=max(1.0, cluster.num_devices / usable_cpus()) if shared else 1.0,
            may_change=tuple(may_change),
        )
    )


def _checked(problem: Problem) -> Problem:
    """The problem.

    Raises:
        FacetrainError: BatchNorm would see a single image.
    """
    parts = problem.config.optim.micro_batches
    if problem.rows < 2 * parts:
        cut = f" in --micro-batches {parts}" if parts > 1 else ""
        raise FacetrainError(
            f"{problem.rows} images a device{cut}: BatchNorm needs 2 at a time; give "
            f"--batch-per-gpu {2 * parts} or more"
            + (", or fewer --micro-batches" if parts > 1 else "")
        )
    return problem


def rows_of(config: RunConfig, num_devices: int) -> int:
    """Images of a step on the device with the most.

    Raises:
        FacetrainError: BatchNorm would see a single one.
    """
    batch = config.optim.global_batch_size
    rows = -(-batch // num_devices)
    if rows < 2:
        raise FacetrainError(
            f"--global-batch-size {batch} over {num_devices} devices: each needs 2 images at "
            f"least; give {2 * num_devices} or more, or --batch-per-gpu"
        )
    return rows
