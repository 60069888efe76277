"""The class-sharded head equals the dense float64 computation, on 1, 2 and 3 real ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from facetrain.classifier import ScheduleWish, ShardedClassifier
from facetrain.distributed import (
    Communicator,
    CountedCommunicator,
    SingleCommunicator,
    even_counts,
)
from facetrain.margins import build_margin
from tests.ranks import raise_first, run_ranks

SIZE = 16


def _batch(num_rows: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    embeddings = torch.randn((num_rows, SIZE), generator=generator) * 3
    labels = torch.randint(num_classes, (num_rows,), generator=generator)
    return embeddings, labels


def _dense(
    embeddings: torch.Tensor,
    labels: torch.Tensor,
    centers: torch.Tensor,
    margin: str,
    scale: float,
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Loss and gradients by autograd in float64, the margin written out again."""
    embeddings = embeddings.double().requires_grad_()
    centers = centers.double().requires_grad_()
    cosines = functional.normalize(embeddings) @ functional.normalize(centers).T
    one_hot = functional.one_hot(labels, len(centers)).double()
    if margin == "cosface":
        logits = scale * (cosines - 0.35 * one_hot)
    else:
        angles = torch.arccos(cosines.clamp(-1 + 1e-12, 1 - 1e-12))
        logits = scale * torch.cos(angles + 0.5 * one_hot)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    assert embeddings.grad is not None
    assert centers.grad is not None
    return loss.item(), embeddings.grad, centers.grad


def _head(communicator: Communicator, num_classes: int, **options: object) -> ShardedClassifier:
    margin = build_margin(str(options.pop("margin", "cosface")))
    return ShardedClassifier(num_classes, SIZE, margin, communicator, seed=3, **options)  # type: ignore[arg-type]


def _step(
    communicator: Communicator,
    num_classes: int,
    counts: list[int],
    margin: str,
    scale: float,
    chunk_rows: int,
) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    head = _head(
        communicator,
        num_classes,
        margin=margin,
        scale=scale,
        schedule=ScheduleWish(chunk_rows=chunk_rows),
    )
    embeddings, labels = _batch(sum(counts), num_classes)
    own = embeddings.split(counts)[communicator.rank].clone().requires_grad_()
    loss = head(own, labels.split(counts)[communicator.rank])
    loss.backward()
    gradient = head.centers.grad
    assert gradient is not None
    assert own.grad is not None
    torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4).step()
    return loss.item(), own.grad, gradient, head.centers.detach()


@pytest.mark.parametrize("margin", ["cosface", "arcface"])
@pytest.mark.parametrize(
    ("counts", "num_classes", "chunk_rows"),
    [
        ([12], 10, 0),
        ([12], 10, 5),
        ([6, 6], 11, 4),
        ([9, 3], 10, 0),
        ([4, 0, 8], 7, 5),
        ([4, 4, 4], 2, 0),  # rank 2 has no class
    ],
)
def test_sharded_head_equals_dense_float64(
    counts: list[int], num_classes: int, chunk_rows: int, margin: str
) -> None:
    scale = 16.0
    world_size = len(counts)
    arguments = (num_classes, counts, margin, scale, chunk_rows)
    if world_size == 1:
        results = [_step(SingleCommunicator(), *arguments)]
    else:
        results = raise_first(run_ranks(_step, world_size, *arguments))
    embeddings, labels = _batch(sum(counts), num_classes)
    initial = _head(SingleCommunicator(), num_classes).centers.detach()
    loss, embedding_gradient, center_gradient = _dense(embeddings, labels, initial, margin, scale)
    updated = initial.double() - 0.1 * (center_gradient + 5e-4 * initial.double())

    # fp32 products of D = 16 terms: a few 1e-7 relative to the largest entry.
    for result in results:
        assert result[0] == pytest.approx(loss, rel=2e-6)
    for index, expected in ((1, embedding_gradient), (2, center_gradient), (3, updated)):
        found = torch.cat([result[index] for result in results]).double()
        error = (found - expected).abs().max() / expected.abs().max()
        assert error < 3e-6


def test_initial_centers_do_not_depend_on_the_cut() -> None:
    def centers(world_size: int) -> torch.Tensor:
        parts = []
        for rank in range(world_size):
            communicator = SingleCommunicator()
            communicator.rank, communicator.world_size = rank, world_size
            parts.append(_head(communicator, 2500).centers.detach())
        return torch.cat(parts)

    for world_size in (2, 3, 7):
        torch.testing.assert_close(centers(world_size), centers(1), rtol=0, atol=0)
    assert even_counts(2500, 7) == [358, 357, 357, 357, 357, 357, 357]


def test_loss_is_right_where_the_sum_of_exponentials_underflows() -> None:
    # Two classes opposite to every embedding: exp(64 * (-1 - 1)) is 0 in fp32.
    head = _head(SingleCommunicator(), 2, scale=64.0)
    with torch.no_grad():
        head.centers.copy_(-torch.ones(2, SIZE))
        head.centers[1, 0] = -1.1
    embeddings = torch.ones((3, SIZE), requires_grad=True)
    labels = torch.tensor([0, 1, 0])
    loss = head(embeddings, labels)
    loss.backward()
    expected, embedding_gradient, center_gradient = _dense(
        embeddings.detach(), labels, head.centers.detach(), "cosface", 64.0
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert head.centers.grad is not None
    assert embeddings.grad is not None
    # Gradients are differences of nearly parallel unit vectors times s = 64.
    torch.testing.assert_close(embeddings.grad.double(), embedding_gradient, rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(head.centers.grad.double(), center_gradient, rtol=1e-3, atol=2e-6)


def test_one_class_gives_zero_loss_and_zero_length_embedding_no_gradient() -> None:
    head = _head(SingleCommunicator(), 1, scale=8.0)
    embeddings = torch.zeros((2, SIZE), requires_grad=True)
    loss = head(embeddings, torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert embeddings.grad is not None
    assert embeddings.grad.abs().max() == 0


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    embeddings, labels = _batch(12, 10)
    whole, parts = (_head(SingleCommunicator(), 10) for _ in range(2))
    whole_loss = whole(embeddings, labels)
    whole_loss.backward()
    part_losses = [
        parts(e, y, num_rows=12)
        for e, y in zip(embeddings.split([5, 7]), labels.split([5, 7]), strict=True)
    ]
    for loss in part_losses:
        loss.backward()
    assert sum(part_losses).item() == pytest.approx(whole_loss.item(), rel=1e-6)  # type: ignore[union-attr]
    assert parts.centers.grad is not None
    assert whole.centers.grad is not None
    error = (parts.centers.grad - whole.centers.grad).abs().max()
    assert (
        error < 1e-6 * whole.centers.grad.abs().max()
    )  # the same fp32 terms, added in another order


def _counted_step(
    communicator: Communicator, num_classes: int, schedule: ScheduleWish, margin: str = "cosface"
) -> tuple[dict[str, int], dict[str, int]]:
    counted = CountedCommunicator(communicator)
    head = _head(counted, num_classes, schedule=schedule, margin=margin)
    embeddings, labels = _batch(8, num_classes)
    head(embeddings.requires_grad_(), labels, counts=[8] * communicator.world_size).backward()
    return dict(counted.calls), dict(counted.sent_bytes)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("num_classes", [10, 1000])
def test_a_step_sends_what_the_docs_say_whatever_the_number_of_classes(
    world_size: int, num_classes: int
) -> None:
    chunk_rows, rows = 5, 8 * world_size
    chunks = -(-rows // chunk_rows)
    for calls, sent_bytes in raise_first(
        run_ranks(_counted_step, world_size, num_classes, ScheduleWish(chunk_rows=chunk_rows))
    ):
        assert calls == {"all_gather": 2, "all_reduce": chunks, "reduce_scatter": 1}
        share = (world_size - 1) / world_size
        assert sent_bytes == {
            "all_gather": round(rows * SIZE * 4 * share) + round(rows * 8 * share),
            "all_reduce": sum(
                round(2 * 2 * 4 * min(chunk_rows, rows - first) * share)
                for first in range(0, rows, chunk_rows)
            ),
            "reduce_scatter": round(rows * SIZE * 4 * share),
        }


@pytest.mark.parametrize(
    ("margin", "all_reduces", "gathered_width", "scattered_width"),
    [
        ("cosface", 1, SIZE, SIZE),
        ("curricularface", 2, SIZE, SIZE),
        ("magface", 1, SIZE + 1, SIZE + 1),
        ("uniface", 1, SIZE, SIZE),
    ],
)
def test_class_tiles_and_other_margins_send_what_the_docs_say(
    margin: str, all_reduces: int, gathered_width: int, scattered_width: int
) -> None:
    rows, share = 16, 0.5
    schedule = ScheduleWish("class_tiles", tile_classes=7)
    for calls, sent_bytes in raise_first(run_ranks(_counted_step, 2, 40, schedule, margin)):
        assert calls == {"all_gather": 2, "all_reduce": all_reduces, "reduce_scatter": 1}
        assert sent_bytes["all_gather"] == rows * gathered_width * 4 * share + rows * 8 * share
        assert sent_bytes["reduce_scatter"] == rows * scattered_width * 4 * share
        # 2 floats a row for the sums, 1 for the targets' cosines.
        assert sent_bytes["all_reduce"] == (2 + (all_reduces - 1)) * rows * 4 * 2 * share


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("num_rows", "chunk_rows", "shrink", "factor"),
    [
        (64, 0, 1.0, 1.0),
        (64, 20, 1.0, 1.0),
        (2, 0, 1.0, 1.0),
        (64, 0, 1e-2, 1.0),
        (64, 0, 1, 2.0**16),
    ],
)
@pytest.mark.parametrize("kind", ["row_chunks", "class_tiles"])
def test_sixteen_bit_products_stay_within_their_rounding(
    kind: str, num_rows: int, chunk_rows: int, shrink: float, factor: float, dtype: torch.dtype
) -> None:
    classes, scale = 50, 64.0
    embeddings, labels = _batch(num_rows, classes)
    head = _head(
        SingleCommunicator(),
        classes,
        scale=scale,
        product_dtype=dtype,
        schedule=ScheduleWish(kind, chunk_rows),
    )
    with torch.no_grad():
        head.centers.mul_(shrink)
    expected = _dense(embeddings, labels, head.centers.detach(), "cosface", scale)
    leaf = embeddings.clone().requires_grad_()
    loss = head(leaf, labels)
    (loss * factor).backward()
    assert leaf.grad is not None
    assert head.centers.grad is not None
    # A factor is rounded by half a unit: 2^-9 or 2^-12 of itself. A cosine of D terms of random
    # signs errs by about sqrt(2 / D) of that, a logit by s times as much, 4 deviations allowed; and
    # a probability, the gradient's factor, by the logit's error, relatively.
    unit = 2.0**-9 if dtype == torch.bfloat16 else 2.0**-12
    logit_error = 4 * scale * unit * (2 / SIZE) ** 0.5
    assert loss.item() == pytest.approx(expected[0], abs=logit_error)
    for found, wanted in ((leaf.grad, expected[1]), (head.centers.grad, expected[2])):
        error = (found.double() / factor - wanted).norm() / wanted.norm()
        assert error < 2 * logit_error
        assert error < 0.05 if dtype == torch.float16 else True


def _learnt(communicator: Communicator) -> tuple[float, torch.Tensor]:
    """Every row lies on its center, all centers are at right angles."""
    head = _head(communicator, SIZE, scale=16.0)
    with torch.no_grad():
        head.centers.copy_(0.1 * torch.eye(SIZE)[slice(*head.row_range)])
    labels = torch.arange(12)
    leaf = torch.eye(SIZE)[:12].split([6, 6])[communicator.rank].clone().requires_grad_()
    loss = head(leaf, labels.split([6, 6])[communicator.rank], counts=[6, 6])
    loss.backward()
    assert head.centers.grad is not None
    return loss.item(), head.centers.grad


def test_rows_that_are_learnt_keep_their_digits() -> None:
    results = raise_first(run_ranks(_learnt, 2))
    centers = torch.eye(SIZE)
    expected = _dense(centers[:12].clone(), torch.arange(12), 0.1 * centers, "cosface", 16.0)
    assert 0 < expected[0] < 1e-3
    for loss, _ in results:
        # s times the margin's rounding: 16 * 0.35 * 2**-24, in the exponent.
        assert loss == pytest.approx(expected[0], rel=1e-5)
    gradient = torch.cat([gradient for _, gradient in results])
    assert (gradient - expected[2]).abs().max() < 1e-5 * expected[2].abs().max()
