"""Centers in copies: groups of ranks equal the dense float64 computation, and stay equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.distributed import Communicator, CountedCommunicator, SingleCommunicator
from facetrain.errors import FacetrainError
from facetrain.margins import build_margin
from tests.ranks import raise_first, run_ranks

SIZE, CLASSES, SCALE, LR, MOMENTUM, DECAY = 8, 11, 8.0, 0.5, 0.9, 0.01
STEPS = 2
COUNTS = {2: [3, 5], 3: [4, 0, 3], 4: [2, 0, 5, 3]}


def _batch(step: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    embeddings = torch.randn((num_rows, SIZE), generator=generator) * 3
    return embeddings, torch.randint(CLASSES, (num_rows,), generator=generator)


def _steps(communicator: Communicator, head_ranks: int, options: dict[str, Any]) -> dict[str, Any]:
    """Two steps of SGD; what each rank sees of the last."""
    counts = COUNTS[communicator.world_size]
    counted = CountedCommunicator(communicator)
    optimizer = None
    if options.get("with_optimizer", True):
        optimizer = CenterSGD(LR, MOMENTUM, DECAY)
    head = ShardedClassifier(
        CLASSES,
        SIZE,
        build_margin("cosface"),
        counted,
        scale=SCALE,
        optimizer=optimizer,
        schedule=ScheduleWish(chunk_rows=options.get("chunk_rows", 0)),
        head_ranks=head_ranks,
        seed=3,
    )
    outer = None
    if optimizer is None:
        outer = torch.optim.SGD(head.parameters(), LR, MOMENTUM, weight_decay=DECAY)
    norm = 0.0
    for step in range(STEPS):
        counted.reset()
        embeddings, labels = _batch(step, sum(counts))
        own = embeddings.split(counts)[communicator.rank].clone().requires_grad_()
        head.zero_grad()
        loss = head(own, labels.split(counts)[communicator.rank], counts=counts)
        loss.backward()
        if outer is not None:
            outer.step()
        elif options.get("max_norm"):
            norm = head.clip_gradient(options["max_norm"])
        head.step()
    return {
        "loss": loss.item(),
        "embeddings": own.grad,
        "rows": head.row_range,
        "centers": head.centers.detach(),
        "norm": norm,
        "sent_bytes": dict(counted.sent_bytes),
    }


def _dense(num_rows: int, initial: torch.Tensor, max_norm: float | None) -> dict[str, Any]:
    """The same steps in float64, all rows and classes at once."""
    centers = initial.double().requires_grad_()
    momentum = torch.zeros_like(centers)
    for step in range(STEPS):
        embeddings, labels = _batch(step, num_rows)
        rows = embeddings.double().requires_grad_()
        cosines = functional.normalize(rows) @ functional.normalize(centers).T
        margin = 0.35 * functional.one_hot(labels, CLASSES).double()
        loss = functional.cross_entropy(SCALE * (cosines - margin), labels)
        centers.grad = None
        loss.backward()
        with torch.no_grad():
            assert centers.grad is not None
            gradient = centers.grad
            norm = gradient.norm()
            if max_norm is not None and norm > max_norm:
                gradient = gradient * (max_norm / norm)
            momentum = MOMENTUM * momentum + gradient + DECAY * centers
            centers -= LR * momentum
    return {"loss": loss.item(), "embeddings": rows.grad, "centers": centers, "norm": norm.item()}


def _check(world_size: int, head_ranks: int, **options: Any) -> list[dict[str, Any]]:
    results = raise_first(run_ranks(_steps, world_size, head_ranks, options))
    counts = COUNTS[world_size]
    initial = ShardedClassifier(
        CLASSES, SIZE, build_margin("cosface"), SingleCommunicator(), seed=3
    ).centers.detach()
    dense = _dense(sum(counts), initial, options.get("max_norm"))
    for rank, result in enumerate(results):
        assert result["loss"] == pytest.approx(dense["loss"], rel=3e-6)
        first, end = result["rows"]
        for name, wanted in (
            ("embeddings", dense["embeddings"].split(counts)[rank]),
            ("centers", dense["centers"].detach()[first:end]),
        ):
            # fp32 against float64, two steps: a few 1e-7 of the largest entry each.
            largest = dense[name].detach().abs().max()
            assert torch.all((result[name] - wanted).abs() <= 5e-6 * largest)
        # Copies never part, not by a bit.
        assert torch.equal(result["centers"], results[rank % head_ranks]["centers"])
        if "max_norm" in options:
            assert result["norm"] == pytest.approx(dense["norm"], rel=1e-5)
    return results


def test_each_process_with_all_centers_equals_the_dense_computation() -> None:
    results = _check(2, 1)
    # Features stay where they are: two numbers of the loss, and the centers' gradient twice half.
    for result in results:
        assert result["sent_bytes"] == {"all_reduce": 8 + 4 * CLASSES * SIZE}


def test_clipping_takes_the_norm_of_one_copy() -> None:
    _check(2, 1, max_norm=0.02, chunk_rows=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"chunk_rows": 2}, {"max_norm": 0.02}, {"with_optimizer": False}]
)
def test_groups_of_two_of_four_equal_the_dense_computation(options: dict[str, Any]) -> None:
    _check(4, 2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [0, 3])
def test_three_copies_with_a_rank_without_rows_equal_the_dense_computation(
    chunk_rows: int,
) -> None:
    _check(3, 1, chunk_rows=chunk_rows, with_optimizer=not chunk_rows)


def _wrong_label(communicator: Communicator) -> str:
    head = ShardedClassifier(
        CLASSES, SIZE, build_margin("cosface"), communicator, optimizer=CenterSGD(LR), head_ranks=1
    )
    labels = torch.tensor([0, CLASSES if communicator.rank else 1])
    with pytest.raises(FacetrainError) as raised:
        head(torch.randn(2, SIZE), labels, counts=[2, 2])
    return str(raised.value)


def test_a_wrong_label_in_one_group_stops_all_ranks() -> None:
    other, own = raise_first(run_ranks(_wrong_label, 2))
    assert own.startswith(f"label {CLASSES} in row 1 of rank 1's batch")
    assert "another copy of the centers" in other


def _refusals(communicator: Communicator) -> list[str]:
    messages = []
    for head_ranks, margin, rate in ((3, "cosface", 1.0), (1, "adaface", 1.0), (1, "cosface", 0.5)):
        with pytest.raises(FacetrainError) as raised:
            ShardedClassifier(
                CLASSES,
                SIZE,
                build_margin(margin),
                communicator,
                sample_rate=rate,
                optimizer=CenterSGD(LR),
                head_ranks=head_ranks,
            )
        messages.append(str(raised.value))
    return messages


def test_what_copies_cannot_do_is_refused_in_one_line() -> None:
    for messages in raise_first(run_ranks(_refusals, 2)):
        assert messages[0] == (
            "--head-ranks 3: must divide the number of processes, 2; 0 = all of them"
        )
        assert messages[1].startswith("--head-ranks 1 of 2 processes: AdaFace has statistics")
        assert "--sample-rate 0.5" in messages[2]
