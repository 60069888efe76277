"""Batches and worlds at the edge: the right result, or one clear error on every rank."""

from __future__ import annotations

import math
import os
import re
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.distributed import Communicator, PeerLostError, SingleCommunicator
from facetrain.errors import FacetrainError
from facetrain.margins import MARGINS, CosFace, build_margin
from tests.ranks import raise_first, run_ranks

SIZE, SCALE, MARGIN = 8, 16.0, 0.35
SCHEDULES = [ScheduleWish("row_chunks"), ScheduleWish("class_tiles", tile_classes=2)]


def _head(communicator: Communicator, num_classes: int, **options: Any) -> ShardedClassifier:
    options.setdefault("margin", CosFace(MARGIN))
    return ShardedClassifier(
        num_classes,
        SIZE,
        options.pop("margin"),
        communicator,
        scale=SCALE,
        optimizer=CenterSGD(0.1),
        seed=3,
        **options,
    )


def _embeddings(num_rows: int) -> torch.Tensor:
    return torch.randn((num_rows, SIZE), generator=torch.Generator().manual_seed(1))


def _dense_loss(embeddings: torch.Tensor, labels: torch.Tensor, num_classes: int) -> float:
    centers = _head(SingleCommunicator(), num_classes).centers.detach().double()
    cosines = functional.normalize(embeddings.double()) @ functional.normalize(centers).T
    logits = SCALE * (cosines - MARGIN * functional.one_hot(labels, num_classes))
    return functional.cross_entropy(logits, labels).item()


def _losses(
    communicator: Communicator, num_classes: int, counts: list[int], labels: torch.Tensor
) -> list[tuple[float, torch.Tensor]]:
    """Loss and gradient of this rank's rows, by each schedule."""
    found = []
    for schedule in SCHEDULES:
        head = _head(communicator, num_classes, schedule=schedule)
        own = _embeddings(sum(counts)).split(counts)[communicator.rank].requires_grad_()
        loss = head(own, labels.split(counts)[communicator.rank])
        loss.backward()
        assert own.grad is not None
        found.append((loss.item(), own.grad))
    return found


@pytest.mark.parametrize(
    ("num_classes", "counts", "labels"),
    [
        (1, [3, 3], [0] * 6),
        (2, [3, 3], [0, 1, 1, 0, 0, 1]),
        (2, [2, 2, 2], [0, 1, 1, 0, 0, 1]),  # rank 2 has no class
        (9, [6, 0], [4, 4, 4, 4, 4, 4]),  # rank 1 has no row, all rows of one class
        (9, [0, 0], []),
        (9, [1, 5], [8, 0, 8, 8, 1, 2]),
    ],
)
def test_edges_give_the_dense_loss_on_every_rank(
    num_classes: int, counts: list[int], labels: list[int]
) -> None:
    wanted = torch.tensor(labels, dtype=torch.int64)
    results = raise_first(run_ranks(_losses, len(counts), num_classes, counts, wanted))
    expected = _dense_loss(_embeddings(len(labels)), wanted, num_classes) if labels else 0.0
    for rank, count in zip(results, counts, strict=True):
        for loss, gradient in rank:
            assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
            assert gradient.shape == (count, SIZE)
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("margin", MARGINS)
def test_a_row_of_length_zero_leaves_the_others_alone_and_gets_no_direction(margin: str) -> None:
    head = _head(SingleCommunicator(), 6, margin=build_margin(margin))
    embeddings = _embeddings(4)
    embeddings[2] = 0.0
    leaf = embeddings.requires_grad_()
    loss = head(leaf, torch.tensor([1, 2, 3, 4]))
    loss.backward()
    assert math.isfinite(loss.item())
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad[2].abs().max() == 0
    assert leaf.grad[1].abs().max() > 0


def _with_nan(communicator: Communicator, margin: str) -> tuple[float, bool, bool]:
    head = _head(communicator, 6, margin=build_margin(margin), sample_rate=0.9)
    before = head.centers.detach().clone()
    statistics = {name: value.clone() for name, value in head.margin.state_dict().items()}
    embeddings = _embeddings(4)
    if communicator.rank == 0:
        embeddings[1, 3] = float("nan")
    leaf = embeddings.requires_grad_()
    loss = head(leaf, torch.tensor([1, 2, 3, 4]), counts=[4] * communicator.world_size)
    loss.backward()
    finite = all(bool(torch.isfinite(value).all()) for value in head.margin.state_dict().values())
    assert finite, statistics
    return loss.item(), torch.equal(before, head.centers.detach()), finite


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("margin", ["cosface", "adaface", "curricularface", "uniface"])
def test_nan_in_a_feature_is_a_nan_loss_on_every_rank_and_steps_no_center(
    margin: str, world_size: int
) -> None:
    if world_size == 1:
        results = [_with_nan(SingleCommunicator(), margin)]
    else:
        results = raise_first(run_ranks(_with_nan, world_size, margin))
    for loss, unchanged, finite in results:
        assert math.isnan(loss)
        assert unchanged
        assert finite


def test_more_positives_than_the_sample_are_all_kept() -> None:
    head = _head(SingleCommunicator(), 20, sample_rate=0.1)
    labels = torch.arange(12)
    before = head.centers.detach().clone()
    head(_embeddings(12).requires_grad_(), labels).backward()
    moved = (before != head.centers.detach()).any(1).nonzero().squeeze(1)
    assert moved.tolist() == labels.tolist()


def _with_a_batch_that_does_not_agree(communicator: Communicator, what: str) -> None:
    head = _head(communicator, 10)
    embeddings, labels = _embeddings(3), torch.tensor([1, 2, 3])
    if communicator.rank == 1:
        embeddings = embeddings[:, :4] if what == "size" else embeddings
        labels = {
            "labels": labels[:2],
            "type": labels.int(),
            "device": labels.to("meta"),
        }.get(what, labels)
    counts = [3, 3] if what != "counts" else [3, 2]
    head(embeddings, labels, counts=counts)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("size", r"embeddings \[3, 4\], labels \[3\]; must be \[3, 8\] and \[3\]"),
        ("labels", r"embeddings \[3, 8\], labels \[2\]; must be \[3, 8\] and \[3\]"),
        ("device", r"rank 1's batch is on cpu and meta; must be on cpu"),
        ("type", r"labels are torch.int32; must be torch.int64"),
        ("counts", r"embeddings \[3, 8\], labels \[3\]; must be \[2, 8\] and \[2\]"),
    ],
)
def test_a_batch_whose_parts_do_not_agree_is_an_error_on_every_rank(
    what: str, message: str
) -> None:
    first, second = run_ranks(_with_a_batch_that_does_not_agree, 2, what)
    assert isinstance(first, FacetrainError)
    assert "rank 1's batch cannot be used" in first.args[0]
    assert isinstance(second, FacetrainError)
    assert re.search(message, second.args[0])


@pytest.mark.parametrize("wrong", [-1, 10, 2**40])
def test_a_label_out_of_range_is_the_same_error_on_every_rank(wrong: int) -> None:
    for result in run_ranks(_with_wrong_label, 3, wrong):
        assert isinstance(result, FacetrainError)
        assert f"label {wrong} in row 2 of rank 1's batch: must be from 0 to 9" in result.args[0]


def _with_wrong_label(communicator: Communicator, wrong: int) -> None:
    head = _head(communicator, 10)
    labels = torch.tensor([1, 2, wrong if communicator.rank == 1 else 3])
    head(_embeddings(3), labels)


def _with_a_dying_rank(communicator: Communicator) -> str:
    head = _head(communicator, 10)
    labels = torch.tensor([1, 2, 3])
    head(_embeddings(3).requires_grad_(), labels).backward()
    if communicator.rank == 1:
        os._exit(1)
    started = time.monotonic()
    try:
        head(_embeddings(3).requires_grad_(), labels).backward()
    except PeerLostError as error:
        assert time.monotonic() - started < 30
        return str(error)
    return "went on alone"


def test_a_rank_that_dies_ends_the_others_with_a_message() -> None:
    results = run_ranks(_with_a_dying_rank, 2)
    assert "lost contact with another process" in str(results[0])
    assert isinstance(results[1], EOFError)
