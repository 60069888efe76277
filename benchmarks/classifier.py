"""The class-sharded head beside the eager formula and arcface_torch's PartialFC_V2, in one run.

    python benchmarks/classifier.py --classes 100000 --rows 128 --num-processes 2 \
        --arcface-torch PATH/recognition/arcface_torch

Time is the median of interleaved steps (forward, backward, SGD with momentum) of rank 0; peak the
bytes of tensors above the resting state (centers, momentum, input), counted operator by operator
in a step of its own, so the gradient of the centers is part of it. All run in fp32 on gloo.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from facetrain.classifier import ShardedClassifier
from facetrain.distributed import Communicator, World, connect
from facetrain.distributed.launch import launch
from facetrain.margins import CosFace
from memopt.live_bytes import LiveBytes

SCALE, MARGIN = 64.0, 0.4
Loss = Callable[[Tensor, Tensor], Tensor]


def eager_head(head: ShardedClassifier) -> Loss:
    """The same loss by autograd, every logit of this rank's classes in memory; one rank only."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        cosines = functional.normalize(embeddings) @ functional.normalize(head.centers).T
        margin = torch.zeros_like(cosines).scatter_(1, labels[:, None], MARGIN)
        return functional.cross_entropy(SCALE * (cosines - margin), labels)

    return loss


def partial_fc(folder: Path, options: argparse.Namespace) -> nn.Module:
    """arcface_torch's head, on the CPU: it asks for a GPU by name, which is answered here."""
    Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    sys.path.insert(0, str(folder))
    from losses import CombinedMarginLoss  # type: ignore[import-not-found]
    from partial_fc_v2 import PartialFC_V2  # type: ignore[import-not-found]

    margin = CombinedMarginLoss(SCALE, 1.0, 0.0, MARGIN)
    module: nn.Module = PartialFC_V2(margin, options.embedding_size, options.classes)
    return module


def systems(options: argparse.Namespace, communicator: Communicator) -> dict[str, tuple[Any, Loss]]:
    def ours(chunk_rows: int = 0) -> ShardedClassifier:
        return ShardedClassifier(
            options.classes,
            options.embedding_size,
            CosFace(MARGIN),
            communicator,
            scale=SCALE,
            chunk_rows=chunk_rows,
        )

    head, small = ours(), ours(chunk_rows=8)
    found: dict[str, tuple[Any, Loss]] = {
        f"facetrain, {head.chunk_rows} rows a chunk": (head, head),
        "facetrain, 8 rows a chunk": (small, small),
    }
    if communicator.world_size == 1:
        eager = ours()
        found["eager formula"] = (eager, eager_head(eager))
    if options.arcface_torch and communicator.world_size > 1:
        module = partial_fc(options.arcface_torch, options)
        found["PartialFC_V2"] = (module, module)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=128, help="of the global batch")
    parser.add_argument("--embedding-size", type=int, default=512)
    parser.add_argument("--num-processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--arcface-torch", type=Path, help="folder of partial_fc_v2.py")
    options = parser.parse_args()
    world = World.from_environment()
    if not world.launched and options.num_processes > 1:
        return launch([sys.executable, *sys.argv], options.num_processes)
    communicator = connect(world, torch.device("cpu"), "torch", timeout_s=600)
    torch.set_num_threads(1)
    torch.manual_seed(communicator.rank)
    rows = options.rows // communicator.world_size
    embeddings = torch.randn(rows, options.embedding_size)
    labels = torch.randint(options.classes, (rows,))

    optimizers = {}
    candidates = systems(options, communicator)
    for name, (module, _) in candidates.items():
        optimizers[name] = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, fused=True)

    def step(name: str) -> None:
        leaf = embeddings.clone().requires_grad_()
        candidates[name][1](leaf, labels.clone()).backward()
        optimizers[name].step()
        optimizers[name].zero_grad(set_to_none=True)

    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    peaks: dict[str, int] = {}
    for name in candidates:
        step(name)  # makes the momentum
        with LiveBytes() as live:
            step(name)
        peaks[name] = live.peak_bytes
    for _ in range(options.steps):
        for name in candidates:
            communicator.barrier()
            start = time.perf_counter()
            step(name)
            seconds[name].append(time.perf_counter() - start)
    if communicator.rank == 0:
        print(
            f"{options.classes:,} classes, {options.rows} rows, D = {options.embedding_size}, "
            f"{communicator.world_size} processes, fp32, one thread each"
        )
        for name in candidates:
            milliseconds = 1e3 * statistics.median(seconds[name])
            print(f"{name:<32}{milliseconds:>10.0f} ms{peaks[name] / 2**20:>10.1f} MiB")
    communicator.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
