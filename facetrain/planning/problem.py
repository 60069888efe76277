"""What is to be planned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from facetrain.config import RunConfig
from memopt.partition.cluster import Cluster

IMAGE_CHANNELS = 3


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
    slowdown: float = 1.0
    may_change: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        return self.cluster.num_devices

    @property
    def state_ratio(self) -> float:
        """Bytes of the backbone's optimizer state to a byte of weights."""
        optim = self.config.optim
        return 2.0 if optim.optimizer == "adamw" else float(optim.momentum > 0)
