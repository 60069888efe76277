"""The step of the centers: in the backward pass or after it, clipped, accumulated, or left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from facetrain.classifier import CenterAdamW, CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.classifier.products import Products
from facetrain.distributed import Communicator, SingleCommunicator, even_counts
from facetrain.errors import FacetrainError
from facetrain.margins import ArcFace, build_margin
from memopt.live_bytes import LiveBytes
from tests.ranks import raise_first, run_ranks

CLASSES, SIZE = 40, 16


def _head(communicator: Communicator | None = None, **options: Any) -> ShardedClassifier:
    options.setdefault("optimizer", CenterSGD(0.1, 0.9, 5e-4))
    classes, size = options.pop("num_classes", CLASSES), options.pop("size", SIZE)
    communicator = communicator or SingleCommunicator()
    margin = options.pop("margin", None) or ArcFace()
    return ShardedClassifier(classes, size, margin, communicator, scale=8.0, seed=3, **options)


def _batches(num_rows: int = 12, num_classes: int = CLASSES, size: int = SIZE) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn((num_rows, size), generator=generator),
            torch.randint(num_classes, (num_rows,), generator=generator),
        )
        for _ in range(3)
    ]


def _train(head: ShardedClassifier, max_norm: float | None = None) -> torch.Tensor:
    for embeddings, labels in _batches():
        head(embeddings.requires_grad_(), labels).backward()
        if max_norm is not None:
            head.clip_gradient(max_norm)
        head.step()
    return head.centers.detach()


@pytest.mark.parametrize("sample_rate", [1.0, 0.5])
@pytest.mark.parametrize("schedule", [ScheduleWish("row_chunks"), ScheduleWish("class_tiles")])
@pytest.mark.parametrize("kind", [CenterSGD, CenterAdamW])
def test_a_step_in_the_backward_pass_equals_one_after_it_to_the_bit(
    kind: Any, schedule: ScheduleWish, sample_rate: float
) -> None:
    inside, after = (
        _train(
            _head(
                optimizer=kind(0.1),
                step_in_backward=at_once,
                schedule=schedule,
                sample_rate=sample_rate,
            )
        )
        for at_once in (True, False)
    )
    assert torch.equal(inside, after)
    assert not torch.equal(inside, _head().centers)


def test_an_optimizer_of_torch_on_the_gradient_gives_the_same_centers() -> None:
    head = _head(optimizer=None)
    optimizer = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    for embeddings, labels in _batches():
        optimizer.zero_grad()
        head(embeddings.requires_grad_(), labels).backward()
        optimizer.step()
    torch.testing.assert_close(head.centers.detach(), _train(_head()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sample_rate", [1.0, 0.3])
def test_a_step_in_the_backward_pass_never_holds_the_centers_gradient(sample_rate: float) -> None:
    classes, size = 20_000, 64
    schedule = ScheduleWish(tile_classes=256)
    head = _head(num_classes=classes, size=size, sample_rate=sample_rate, schedule=schedule)
    embeddings, labels = _batches(8, classes, size)[0]
    with LiveBytes() as live:
        head(embeddings.requires_grad_(), labels, counts=[8]).backward()
    # What is left: logits of 8 rows, which are an eighth of the gradient, tiles, and some vectors.
    gradient_bytes = sample_rate * classes * size * 4
    assert gradient_bytes / 8 < live.peak_bytes < gradient_bytes / 2


def _sampled_accumulation(communicator: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two micro-batches that use different classes; the centers after one step of their sum."""
    head = _head(communicator, sample_rate=0.4, step_in_backward=False)
    before = head.centers.detach().clone()
    counts = even_counts(12, communicator.world_size)
    for embeddings, labels in _batches()[:2]:
        own = embeddings.split(counts)[communicator.rank].requires_grad_()
        head(own, labels.split(counts)[communicator.rank], counts=counts, num_rows=24).backward()
    head.step()
    return before, head.centers.detach()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sampled_micro_batches_step_each_class_once_by_the_sum(world_size: int) -> None:
    if world_size == 1:
        results = [_sampled_accumulation(SingleCommunicator())]
    else:
        results = raise_first(run_ranks(_sampled_accumulation, world_size))
    before, found = (torch.cat([result[part] for result in results]) for part in (0, 1))

    # Each micro-batch alone, its dense gradient by a second head; then the sum over both.
    total = torch.zeros_like(before)
    in_use = torch.zeros(CLASSES, dtype=torch.bool)
    sampler = _head(sample_rate=0.4).sampler
    assert sampler is not None
    for embeddings, labels in _batches()[:2]:
        rows = sampler.draw(labels, 0, CLASSES)
        sampler.step += 1
        part = _head(optimizer=None, num_classes=len(rows))
        with torch.no_grad():
            part.centers.copy_(before[rows])
        part(embeddings, torch.searchsorted(rows, labels), num_rows=24).backward()
        assert part.centers.grad is not None
        total[rows] += part.centers.grad
        in_use[rows] = True
    expected = before.clone()
    expected[in_use] -= 0.1 * (total[in_use] + 5e-4 * before[in_use])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def _clipped(communicator: Communicator, max_norm: float) -> tuple[float, torch.Tensor]:
    embeddings, labels = _batches()[0]
    embeddings.requires_grad_()
    head = _head(communicator, step_in_backward=False)
    loss = head(embeddings, labels, counts=[12] * communicator.world_size)
    loss.backward()
    norm = head.clip_gradient(max_norm)
    assert head.gradient.values is not None
    return norm, head.gradient.values


@pytest.mark.parametrize("world_size", [1, 2])
def test_clipping_is_by_the_norm_over_all_ranks(world_size: int) -> None:
    def run(max_norm: float) -> list[Any]:
        if world_size == 1:
            return [_clipped(SingleCommunicator(), max_norm)]
        return raise_first(run_ranks(_clipped, world_size, max_norm))

    plain = torch.cat([gradient for _, gradient in run(1e9)])
    results = run(0.01)
    for norm, _ in results:
        assert norm == pytest.approx(plain.norm().item(), rel=1e-5)
    clipped = torch.cat([gradient for _, gradient in results])
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), plain / plain.norm())


def test_dropped_gradients_step_nothing() -> None:
    head = _head(step_in_backward=False)
    before = head.centers.detach().clone()
    embeddings, labels = _batches()[0]
    head(embeddings.requires_grad_(), labels).backward()
    head.drop_gradient()
    head.step()
    assert torch.equal(head.centers.detach(), before)


def test_a_loss_is_differentiated_once() -> None:
    head = _head()
    embeddings, labels = _batches()[0]
    loss = head(embeddings.requires_grad_(), labels)
    loss.backward(retain_graph=True)
    with pytest.raises(FacetrainError, match="differentiated twice"):
        loss.backward()


def test_a_loss_is_scaled_as_the_caller_wishes() -> None:
    embeddings, labels = _batches()[0]
    gradients = []
    for factor, chunk_rows in ((1.0, 0), (1024.0, 0), (1024.0, 5)):
        head = _head(optimizer=None, schedule=ScheduleWish(chunk_rows=chunk_rows))
        leaf = embeddings.clone().requires_grad_()
        (head(leaf, labels) * factor).backward()
        assert leaf.grad is not None
        assert head.centers.grad is not None
        gradients.append((leaf.grad / factor, head.centers.grad / factor))
    for parts in gradients[1:]:
        # Chunks add the same fp32 terms in another order.
        for found, expected in zip(parts, gradients[0], strict=True):
            assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_frozen_embeddings_still_train_the_centers() -> None:
    head = _head()
    before = head.centers.detach().clone()
    embeddings, labels = _batches()[0]
    head(embeddings, labels).backward()
    assert not torch.equal(head.centers.detach(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes 0: must be at least 1"),
        ({"sub_centers": 0}, "sub_centers 0: must be from 1 to 255"),
        ({"sample_rate": 0.0}, "sample_rate 0.0: must be above 0"),
        ({"sample_rate": 1.5}, "sample_rate 1.5: must be above 0 and at most 1"),
        ({"sample_rate": 0.5, "optimizer": None}, "without an optimizer of the centers"),
        ({"size": 0}, "embedding_size 0: must be at least 1"),
        ({"others_threshold": -1.0}, r"others_threshold -1.0: must be in \(0, 1\]"),
        ({"others_threshold": float("nan")}, r"others_threshold nan: must be in \(0, 1\]"),
        ({"product_dtype": torch.int8}, "product_dtype torch.int8: must be fp32, bf16 or fp16"),
        ({"margin": ArcFace(5.0)}, r"margin's value 5.0: must be in \[0, 1.5708\]"),
    ],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FacetrainError, match=message):
        _head(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CenterSGD(float("nan")), "lr nan: must be 0 or more"),
        (lambda: CenterSGD(-1.0), "lr -1.0: must be 0 or more"),
        (lambda: CenterSGD(0.1, momentum=1.0), r"momentum 1.0: must be in \[0, 1\)"),
        (lambda: CenterSGD(0.1, momentum_dtype=torch.int8), "must be float32 or bfloat16"),
        (lambda: CenterAdamW(0.1, betas=(2.0, 3.0)), r"betas \(2.0, 3.0\): must be in"),
    ],
)
def test_settings_of_an_optimizer_out_of_range_are_named(make: Any, message: str) -> None:
    with pytest.raises(FacetrainError, match=message):
        make()


def test_the_state_of_another_head_is_refused() -> None:
    state = _head(margin=build_margin("adaface"), sample_rate=0.5).common_state()
    _head(margin=build_margin("adaface"), sample_rate=0.5).load_common_state(state)
    with pytest.raises(FacetrainError, match="state of another head: no margin/t"):
        _head(margin=build_margin("curricularface")).load_common_state(state)
    with pytest.raises(FacetrainError, match="no sampler_step"):
        _head(sample_rate=0.5).load_common_state({})


@pytest.mark.parametrize("margin", ["adaface", "curricularface", "sphereface", "elasticface_arc"])
def test_margins_and_centers_learn_only_from_training_steps(margin: str) -> None:
    head = _head(margin=build_margin(margin), sample_rate=0.9)
    assert head.sampler is not None
    embeddings, labels = _batches()[0]
    head(embeddings.requires_grad_(), labels).backward()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    draws = head.sampler.step
    with torch.no_grad():
        assert not head(embeddings, labels).requires_grad
    with torch.inference_mode():
        head(embeddings, labels)
    head.eval()
    loss = head(embeddings, labels)
    loss.backward()
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert head.sampler.step == draws
    head.train()
    head(embeddings, labels).backward()
    assert any(
        not torch.equal(v, before[n]) for n, v in head.margin.state_dict(prefix="margin.").items()
    )
    assert not torch.equal(head.centers, before["centers"])


@pytest.mark.parametrize("chunk_rows", [0, 5])
def test_no_gradient_is_made_without_need(chunk_rows: int) -> None:
    products = []

    class Counted(Products):
        def add_product(self, *arguments: Any, **options: Any) -> None:
            products.append("feature gradient")
            super().add_product(*arguments, **options)

    head = _head(schedule=ScheduleWish("row_chunks", chunk_rows))
    head.products = Counted(torch.float32)
    embeddings, labels = _batches()[0]
    with torch.no_grad(), LiveBytes():
        head(embeddings, labels)
    assert products == []
    head(embeddings.requires_grad_(), labels).backward()
    assert products


@pytest.mark.parametrize("step_in_backward", [True, False])
def test_centers_that_changed_before_the_backward_pass_are_an_error(step_in_backward: bool) -> None:
    head = _head(step_in_backward=step_in_backward)
    embeddings, labels = _batches()[0]
    first, second = (head(embeddings.clone().requires_grad_(), labels) for _ in range(2))
    if step_in_backward:
        with pytest.raises(FacetrainError, match="differentiate each loss before the next call"):
            (first + second).backward()
    else:
        (first + second).backward()
        loss = head(embeddings.clone().requires_grad_(), labels)
        head.step()
        with pytest.raises(FacetrainError, match="differentiate each loss before the next call"):
            loss.backward()


def test_a_margin_that_learnt_before_the_backward_pass_is_an_error() -> None:
    head = _head(margin=build_margin("curricularface"), step_in_backward=False)
    embeddings, labels = _batches()[0]
    losses = [head(embeddings.clone().requires_grad_(), labels) for _ in range(2)]
    with pytest.raises(FacetrainError, match="differentiate each loss before the next call"):
        losses[0].backward()


def test_clipping_after_a_step_in_the_backward_pass_is_an_error() -> None:
    with pytest.raises(FacetrainError, match="step_in_backward=False"):
        _head().clip_gradient(1.0)


@pytest.mark.parametrize("kind", ["row_chunks", "class_tiles"])
def test_autocast_around_the_head_changes_nothing(kind: str) -> None:
    embeddings, labels = _batches()[0]
    found = []
    for enabled in (False, True):
        head = _head(schedule=ScheduleWish(kind))
        leaf = embeddings.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = head(leaf, labels)
            loss.backward()
        found.append((loss.detach(), leaf.grad, head.centers.detach()))
    for plain, under_autocast in zip(*found, strict=True):
        assert torch.equal(plain, under_autocast)


def test_embeddings_of_sixteen_bits_get_gradients_of_sixteen_bits() -> None:
    head = _head()
    embeddings, labels = _batches()[0]
    leaf = embeddings.bfloat16().requires_grad_()
    loss = head(leaf, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.bfloat16
