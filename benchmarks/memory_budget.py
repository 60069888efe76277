"""Peak memory and step time of a backbone under budgets: predicted beside measured, in one run.

    python benchmarks/memory_budget.py --backbone iresnet50 --batch-size 8

Peaks are counted bytes of tensors above the resting state, forward and backward, parameter
gradients included. Steps are interleaved (every budget once, then again) and the fastest of each
counts, since noise only ever adds. One thread unless `--threads` says otherwise.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from facetrain.backbones import BACKBONES, Backbone, build_backbone
from facetrain.memory import MemoryManager, format_bytes, profile_backbone
from memopt.errors import MemoptError

_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


def step_seconds(manager: MemoryManager, backbone: Backbone, images: Tensor) -> float:
    """Time of one forward and backward pass."""
    backbone.zero_grad(set_to_none=True)
    start = time.perf_counter()
    embeddings = manager.forward(images)
    embeddings.backward(torch.full_like(embeddings, 1e-3))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", choices=BACKBONES, default="iresnet50")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    backbone = build_backbone(options.backbone, embedding_size=512).train()
    backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(options.batch_size, 3, 112, 112)
    images = images.contiguous(memory_format=torch.channels_last)

    start = time.perf_counter()
    profile = profile_backbone(backbone, images)
    profile_seconds = time.perf_counter() - start
    unbounded = MemoryManager.fit(backbone, images, 2**60, profile=profile)
    plain_bytes = unbounded.report().plain_peak_bytes
    assert plain_bytes is not None
    managers = {}
    for share in _SHARES:
        try:
            managers[share] = MemoryManager.fit(
                backbone, images, int(plain_bytes * share), profile=profile
            )
        except MemoptError as too_small:
            print(too_small)
            break

    step_seconds(unbounded, backbone, images)  # warms the allocator and the kernels' caches
    seconds = dict.fromkeys(managers, float("inf"))
    for _ in range(options.rounds):
        for share, manager in managers.items():
            seconds[share] = min(seconds[share], step_seconds(manager, backbone, images))
    print(
        f"{options.backbone}, batch {options.batch_size}, fp32, channels_last, "
        f"{options.threads} thread(s), torch {torch.__version__}; plain peak "
        f"{format_bytes(plain_bytes)}, plain step {seconds[1.0]:.2f} s, profile "
        f"{profile_seconds:.1f} s"
    )
    print("budget  predicted   measured  error %  recomputed  predicted time  measured time")
    for share, manager in managers.items():
        with manager.measure():
            step_seconds(manager, backbone, images)
        report = manager.report()
        assert report.predicted_peak_bytes is not None
        assert report.measured_peak_bytes is not None
        assert report.predicted_overhead is not None
        excess = report.predicted_peak_bytes / report.measured_peak_bytes - 1
        print(
            f"{share:6.0%}  {format_bytes(report.predicted_peak_bytes):>9}  "
            f"{format_bytes(report.measured_peak_bytes):>9}  {excess:+7.3%}  "
            f"{len(report.recomputed):4d} of {report.num_segments:2d}  "
            f"{report.predicted_overhead:+13.1%}  {seconds[share] / seconds[1.0] - 1:+13.1%}"
        )


if __name__ == "__main__":
    main()
