"""The loop: any cut of the batch gives the same weights, resume goes on as if uninterrupted,
and what cannot be used is skipped, counted and named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from facetrain.backbones.segments import Backbone, Segment
from facetrain.checkpoint import CheckpointFolder
from facetrain.classifier import ShardedClassifier
from facetrain.config import HeadConfig, OptimConfig, RunConfig
from facetrain.distributed import Communicator, SingleCommunicator, even_counts
from facetrain.errors import FacetrainError
from facetrain.head import build_center_optimizer, needs_whole_gradient
from facetrain.margins import build_margin
from facetrain.memory import MemoryManager
from facetrain.optim import LrSchedule
from facetrain.preprocessing import Preprocessing
from facetrain.run_log import RunLog, read_metrics
from facetrain.trainer import Components, Trainer, TrainingOutcome
from facetrain_datasets.identity_dataset import FaceBatch
from tests.ranks import raise_first, run_ranks

BATCH, STEPS, CLASSES, SIZE = 12, 6, 5, 8


class Tiny(Backbone):
    """A convolution, an optional BatchNorm and a projection."""

    projection_name = "projection.weight"

    def __init__(self, with_batch_norm: bool) -> None:
        super().__init__(SIZE)
        self.convolution = nn.Conv2d(3, 4, 16, stride=16)
        self.norm = nn.BatchNorm2d(4) if with_batch_norm else nn.Identity()
        self.projection = nn.Linear(4 * 49, SIZE)

    def segments(self) -> list[Segment]:
        def run(images: torch.Tensor) -> torch.Tensor:
            return self.projection(self.norm(self.convolution(images)).relu().flatten(1))

        return [Segment("all", run, (self.convolution, self.norm, self.projection))]


def _batches(
    communicator: Communicator, micro_batches: int, start: int, spoiled_step: int | None
) -> Iterator[FaceBatch]:
    """This rank's parts of a stream that depends on the step only."""
    for step in range(start, STEPS):
        generator = torch.Generator().manual_seed(step)
        images = torch.randint(0, 256, (BATCH, 3, 112, 112), generator=generator, dtype=torch.uint8)
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        rows = torch.arange(BATCH)
        for part in rows.split(even_counts(BATCH, micro_batches)):
            own = part.split(even_counts(len(part), communicator.world_size))[communicator.rank]
            skipped = []
            if step == spoiled_step and communicator.rank == 0:
                own, skipped = own[2:], ["a.jpg: cut", "b.jpg: cut"]
            yield FaceBatch(images[own], labels[own], step * BATCH + own, skipped)


def _trainer(
    communicator: Communicator,
    folder: Path,
    *,
    with_batch_norm: bool = False,
    micro_batches: int = 1,
    lr: float = 1.0,
    resume_step: int = 0,
    margin: str = "cosface",
    sample_rate: float = 1.0,
    optimizer: str = "sgd",
    sub_centers: int = 1,
    center_momentum: str = "fp32",
    max_center_gradient_norm: float = 0.0,
    head_ranks: int = 0,
) -> Trainer:
    torch.manual_seed(0)
    backbone = Tiny(with_batch_norm).train()
    optim = OptimConfig(
        optimizer=optimizer,
        epochs=1,
        global_batch_size=BATCH,
        micro_batches=micro_batches,
        lr=lr,
        momentum=0.9,
    )
    head = HeadConfig(
        center_momentum=center_momentum, max_center_gradient_norm=max_center_gradient_norm
    )
    config = RunConfig(head=head, optim=optim, checkpoint_every=2, log_every=1)
    schedule = LrSchedule("linear", lr * BATCH / 1024, 1, STEPS)
    trainer = Trainer(
        config,
        Components(
            backbone,
            MemoryManager.fit(backbone, torch.empty(0), None),
            ShardedClassifier(
                CLASSES,
                SIZE,
                build_margin(margin),
                communicator,
                scale=8.0,
                sub_centers=sub_centers,
                sample_rate=sample_rate,
                optimizer=build_center_optimizer(config),
                step_in_backward=not needs_whole_gradient(config),
                head_ranks=head_ranks,
            ),
            Preprocessing(),
            schedule,
            communicator,
            CheckpointFolder(folder / "checkpoints", communicator),
            RunLog(
                folder if communicator.rank == 0 else None, visible=False, start_step=resume_step
            ),
            facts={"classes": CLASSES},
            describe_image=lambda index: f"image-{index}.jpg",
        ),
    )
    if resume_step:
        trainer.resume(resume_step)
    return trainer


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    parts = trainer._parts
    counts = [count * parts.head.sub_centers for count in parts.head.class_counts]
    centers = parts.head.inside.all_gather(parts.head.centers.detach(), counts)
    return {
        **{name: value.clone() for name, value in parts.backbone.state_dict().items()},
        "centers": centers,
    }


def _train(
    communicator: Communicator, folder: Path, options: dict[str, Any], spoiled: int | None = None
) -> tuple[dict[str, torch.Tensor], list[float], TrainingOutcome]:
    trainer = _trainer(communicator, folder, **options)
    batches = _batches(communicator, options.get("micro_batches", 1), trainer.step, spoiled)
    with trainer._parts.log:
        outcome = trainer.fit(batches)
    communicator.barrier()
    losses = [record.get("loss", float("nan")) for record in read_metrics(folder)]
    return _weights(trainer), losses, outcome


def _on(world_size: int, folder: Path, options: dict[str, Any], *more: Any) -> list[Any]:
    if world_size == 1:
        return [_train(SingleCommunicator(), folder, options, *more)]
    return raise_first(run_ranks(_train, world_size, folder, options, *more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[float]]:
    """One process, the batch in one piece."""
    weights, losses, _ = _on(1, tmp_path_factory.mktemp("whole"), {})[0]
    return weights, losses


@pytest.mark.parametrize(
    ("world_size", "micro_batches", "head_ranks"),
    [(1, 3, 0), (2, 1, 0), (2, 2, 1), (3, 1, 0), (3, 2, 0)],
)
def test_any_cut_of_the_batch_gives_the_same_training(
    world_size: int,
    micro_batches: int,
    head_ranks: int,
    tmp_path: Path,
    whole: tuple[dict[str, torch.Tensor], list[float]],
) -> None:
    options = {"micro_batches": micro_batches, "head_ranks": head_ranks}
    for weights, losses, outcome in _on(world_size, tmp_path, options):
        assert outcome.step == STEPS
        # The same fp32 terms in another order, over six steps.
        assert losses == pytest.approx(whole[1], rel=1e-5)
        for name, value in whole[0].items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("world_size", "head"),
    [
        (1, {}),
        (2, {}),
        (3, {}),
        (2, {"margin": "adaface", "sample_rate": 0.6, "optimizer": "adamw", "lr": 0.1}),
        (3, {"margin": "elasticface_arc", "sample_rate": 0.6, "micro_batches": 2}),
        (2, {"margin": "uniface"}),
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one_to_the_bit(
    world_size: int, head: dict[str, Any], tmp_path: Path
) -> None:
    options = {"with_batch_norm": True, **head}
    straight, losses, _ = _on(world_size, tmp_path, options)[0]
    weights, resumed, _ = _on(world_size, tmp_path, {**options, "resume_step": 4})[0]
    assert resumed == losses
    for name, value in straight.items():
        if name.startswith("norm.running"):
            # Statistics are averaged over ranks at each checkpoint: rounding only.
            torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(weights[name], value)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_a_run_resumes_on_another_world_size(
    before: int,
    after: int,
    tmp_path: Path,
    whole: tuple[dict[str, torch.Tensor], list[float]],
) -> None:
    _on(before, tmp_path, {})
    weights, losses, _ = _on(after, tmp_path, {"resume_step": 4})[0]
    assert losses == pytest.approx(whole[1], rel=1e-5)
    for name, value in whole[0].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "head_ranks"), [((2, 1, 2), (1, 0, 2)), ((4, 2, 1), (2, 1, 0)), ((1, 4), (0, 1))]
)
def test_a_run_resumes_with_other_copies_of_the_centers(
    worlds: tuple[int, ...],
    head_ranks: tuple[int, ...],
    tmp_path: Path,
    whole: tuple[dict[str, torch.Tensor], list[float]],
) -> None:
    for number, (world_size, size) in enumerate(zip(worlds, head_ranks, strict=True)):
        start = {"resume_step": (4, 6)[number - 1]} if number else {}
        weights, losses, _ = _on(world_size, tmp_path, {"head_ranks": size, **start})[0]
    assert losses == pytest.approx(whole[1], rel=1e-5)
    for name, value in whole[0].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


SAMPLED = {"sample_rate": 0.6, "optimizer": "adamw", "lr": 0.1}


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (3, 1, {"margin": "curricularface", **SAMPLED}),
        (1, 2, {"margin": "curricularface", **SAMPLED}),
        (3, 2, {"margin": "magface", "sub_centers": 2, **SAMPLED}),
        (1, 3, {"margin": "magface", "sub_centers": 3, "center_momentum": "bf16"}),
        (2, 3, {"margin": "sphereface", "sub_centers": 2, "center_momentum": "bf16"}),
        (3, 1, {"margin": "sphereface", "sample_rate": 0.6, "center_momentum": "bf16"}),
    ],
)
def test_any_head_goes_on_at_another_world_size(
    before: int, after: int, options: dict[str, Any], tmp_path: Path
) -> None:
    straight, losses, _ = _on(before, tmp_path, options)[0]
    weights, resumed, _ = _on(after, tmp_path, {**options, "resume_step": 4})[0]
    assert resumed == pytest.approx(losses, rel=1e-4)
    for name, value in straight.items():
        # AdamW divides by the root of squared gradients: rounding of small ones shows. A bf16
        # momentum that rounds the other way is 2^-8 off, in steps of some 1e-2.
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4)


def test_skipped_images_are_counted_named_and_leave_the_others_their_weight(
    tmp_path: Path,
) -> None:
    one = _on(1, tmp_path / "one", {}, 3)[0]
    two = _on(2, tmp_path / "two", {}, 3)[0]
    for _, _, outcome in (one, two):
        assert outcome.totals.skipped_images == 2
    # The rank that lost two images has fewer rows; all rows still weigh the same.
    for name, value in one[0].items():
        torch.testing.assert_close(two[0][name], value, rtol=1e-4, atol=1e-6)
    record = json.loads((tmp_path / "two" / "skipped.jsonl").read_text())
    assert record == {
        "step": 4,
        "what": "2 images skipped, a.jpg: cut",
        "files": ["a.jpg: cut", "b.jpg: cut"],
    }


def _train_with_nan(
    communicator: Communicator, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], TrainingOutcome]:
    trainer = _trainer(communicator, folder, with_batch_norm=True)
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    forward = trainer._parts.memory.forward

    def spoiled(images: torch.Tensor) -> torch.Tensor:
        if trainer.step == 3:
            after.update(_state(trainer))
        return forward(images * float("nan") if trainer.step == 2 else images)

    def remember(step: int, what: str, files: list[str]) -> None:
        before.update(_state(trainer))

    trainer._parts.memory.forward = spoiled  # type: ignore[method-assign]
    skipped = trainer._parts.log.skipped
    trainer._parts.log.skipped = lambda *a: (remember(*a), skipped(*a))[1]  # type: ignore[method-assign]
    with trainer._parts.log:
        outcome = trainer.fit(_batches(communicator, 1, 0, None))
    return before, after, outcome


def _state(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        **{name: value.clone() for name, value in trainer._parts.backbone.state_dict().items()},
        "centers": trainer._parts.head.centers.detach().clone(),
    }


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_that_is_not_finite_changes_nothing_and_names_its_images(
    world_size: int, tmp_path: Path
) -> None:
    if world_size == 1:
        results = [_train_with_nan(SingleCommunicator(), tmp_path)]
    else:
        results = raise_first(run_ranks(_train_with_nan, world_size, tmp_path))
    for before, after, outcome in results:
        assert outcome.totals.skipped_steps == 1
        assert outcome.step == STEPS
        for name, value in before.items():
            assert torch.isfinite(value.float()).all()
            assert torch.equal(after[name], value)
    record = json.loads((tmp_path / "skipped.jsonl").read_text())
    assert record["step"] == 3
    assert sorted(record["files"]) == sorted(f"image-{2 * BATCH + row}.jpg" for row in range(BATCH))


def test_a_center_gradient_that_is_not_finite_skips_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(SingleCommunicator(), tmp_path, max_center_gradient_norm=1.0)
    clip = trainer._parts.head.clip_gradient
    states: list[dict[str, torch.Tensor]] = []

    def spoiled(limit: float) -> float:
        states.append(_state(trainer))
        # The loss and the backbone's gradient stay finite.
        return clip(limit) * (float("nan") if trainer.step == 2 else 1.0)

    monkeypatch.setattr(trainer._parts.head, "clip_gradient", spoiled)
    with trainer._parts.log:
        outcome = trainer.fit(_batches(SingleCommunicator(), 1, 0, None))
    assert (outcome.step, outcome.totals.skipped_steps) == (STEPS, 1)
    for name, value in states[2].items():
        assert torch.equal(states[3][name], value)
    assert not torch.equal(states[3]["centers"], states[4]["centers"])
    record = json.loads((tmp_path / "skipped.jsonl").read_text())
    assert record["step"] == 3
    assert "of the centers nan" in record["what"]


def test_a_run_that_stays_not_finite_ends_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facetrain.trainer._MOST_BAD_STEPS_IN_A_ROW", 3)
    trainer = _trainer(SingleCommunicator(), tmp_path)
    with torch.no_grad():
        trainer._parts.head.centers.fill_(float("inf"))
    with (
        trainer._parts.log,
        pytest.raises(FacetrainError, match=r"3 steps in a row skipped.*lower --lr"),
    ):
        trainer.fit(_batches(SingleCommunicator(), 1, 0, None))


def _interrupted(communicator: Communicator, folder: Path) -> TrainingOutcome:
    trainer = _trainer(communicator, folder)

    def batches() -> Iterator[FaceBatch]:
        for number, batch in enumerate(_batches(communicator, 1, 0, None)):
            if number == 2 and communicator.rank == communicator.world_size - 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    with trainer._parts.log:
        return trainer.fit(batches())


@pytest.mark.parametrize("world_size", [1, 2])
def test_ctrl_c_on_one_rank_stops_all_after_the_step_with_a_checkpoint(
    world_size: int, tmp_path: Path, whole: tuple[dict[str, torch.Tensor], list[float]]
) -> None:
    if world_size == 1:
        results = [_interrupted(SingleCommunicator(), tmp_path)]
    else:
        results = raise_first(run_ranks(_interrupted, world_size, tmp_path))
    assert [(outcome.step, outcome.stopped) for outcome in results] == [(2, True)] * world_size
    weights, losses, outcome = _on(world_size, tmp_path, {"resume_step": 2})[0]
    assert not outcome.stopped
    assert losses == pytest.approx(whole[1], rel=1e-5)
    for name, value in whole[0].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def test_a_run_whose_images_all_vanish_ends_with_advice_and_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facetrain.trainer._MOST_BAD_STEPS_IN_A_ROW", 2)
    communicator = SingleCommunicator()
    trainer = _trainer(communicator, tmp_path)

    def batches() -> Iterator[FaceBatch]:
        for number, batch in enumerate(_batches(communicator, 1, 0, None)):
            if number < 3:
                yield batch
            else:
                none = torch.arange(0)
                yield FaceBatch(batch.images[none], batch.labels[none], none, ["gone"] * BATCH)

    with (
        trainer._parts.log,
        pytest.raises(FacetrainError, match=r"2 steps in a row skipped.*check the images' disk"),
    ):
        trainer.fit(batches())
    assert trainer._totals.skipped_images == 2 * BATCH
    assert trainer._parts.checkpoints.steps() == [2, 4]
