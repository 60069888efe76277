"""Trains a head of millions of identities in one process, and holds its memory to the formula.

    python benchmarks/many_identities.py --classes 4000000 --sample-rate 0.1

Prints the resident memory predicted (docs/classifier.md) and measured, peak RSS of this process,
and fails where they differ by more than 5 %. With --limit the process is not allowed more memory
than that, so that a step beyond it fails as it would on a smaller machine.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.distributed import SingleCommunicator
from facetrain.margins import CosFace
from facetrain.memory import format_bytes, parse_bytes, peak_rss_bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, default=4_000_000)
    parser.add_argument("--embedding-size", type=int, default=512)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--sample-rate", type=float, default=0.1)
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--momentum-dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit", default="20GiB", help="of the process's address space")
    options = parser.parse_args()
    limit = parse_bytes(options.limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    optimizer = CenterSGD(0.1, momentum_dtype=DTYPES[options.momentum_dtype])
    rows, size = options.rows, options.embedding_size
    # The first step loads what torch loads late; a small head so makes it part of the base.
    small = ShardedClassifier(1000, size, CosFace(), SingleCommunicator(), optimizer=CenterSGD(0.1))
    small(torch.randn(rows, size).requires_grad_(), torch.randint(1000, (rows,))).backward()
    base_bytes = peak_rss_bytes()

    started = time.perf_counter()
    head = ShardedClassifier(
        options.classes,
        size,
        CosFace(0.4),
        SingleCommunicator(),
        sample_rate=options.sample_rate,
        optimizer=optimizer,
        schedule=ScheduleWish(options.schedule),
    )
    print(f"centers made in {time.perf_counter() - started:.0f} s", flush=True)
    embeddings = torch.randn(rows, size)
    labels = torch.randint(options.classes, (rows,))
    for step in range(options.steps):
        started = time.perf_counter()
        loss = head(embeddings.clone().requires_grad_(), labels)
        loss.backward()
        print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - started:.2f} s")

    schedule = head.schedule(rows)
    resting = options.classes * (4 * size + optimizer.state_bytes_per_row(size))
    predicted = base_bytes + resting + schedule.transient_bytes
    measured = peak_rss_bytes()
    print(
        f"{options.classes:,} identities, r = {options.sample_rate:g}, {schedule.describe()}\n"
        f"predicted {format_bytes(predicted)} = torch and Python {format_bytes(base_bytes)} + "
        f"centers and momentum {format_bytes(resting)} + step "
        f"{format_bytes(schedule.transient_bytes)}\n"
        f"measured {format_bytes(measured)} peak RSS, {measured / predicted - 1:+.1%}"
    )
    return 0 if abs(measured / predicted - 1) < 0.05 else 1


if __name__ == "__main__":
    raise SystemExit(main())
