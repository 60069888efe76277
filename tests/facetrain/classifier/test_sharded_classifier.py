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
from facetrain.errors import FacetrainError
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
    communicator: Communicator, num_classes: int, chunk_rows: int
) -> tuple[dict[str, int], dict[str, int]]:
    counted = CountedCommunicator(communicator)
    head = _head(counted, num_classes, schedule=ScheduleWish(chunk_rows=chunk_rows))
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
        run_ranks(_counted_step, world_size, num_classes, chunk_rows)
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


def test_no_gradients_are_made_without_need() -> None:
    head = _head(SingleCommunicator(), 10)
    embeddings, labels = _batch(4, 10)
    with torch.no_grad():
        loss = head(embeddings, labels)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(head(embeddings, labels).item())


def _with_wrong_label(communicator: Communicator) -> None:
    head = _head(communicator, 10)
    labels = torch.tensor([1, 2, 10 if communicator.rank == 1 else 3])
    head(torch.randn(3, SIZE), labels)


def test_label_out_of_range_is_the_same_error_on_every_rank() -> None:
    for result in run_ranks(_with_wrong_label, 2):
        assert isinstance(result, FacetrainError)
        assert "label 10 in row 2 of rank 1's batch" in result.args[0]


def test_bf16_products_stay_within_their_rounding() -> None:
    embeddings, labels = _batch(12, 10)
    exact = _head(SingleCommunicator(), 10, scale=8.0)
    rounded = _head(SingleCommunicator(), 10, scale=8.0, product_dtype=torch.bfloat16)
    # Cosines carry bf16's 2**-9 relative rounding of both factors, times s.
    tolerance = 8.0 * 2 * 2**-9
    assert rounded(embeddings, labels).item() == pytest.approx(
        exact(embeddings, labels).item(), abs=tolerance
    )
