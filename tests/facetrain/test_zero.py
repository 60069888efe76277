"""Every ZeRO stage takes the step that one process takes; any reads another's checkpoint."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from facetrain.backbones import Backbone, Segment, build_backbone
from facetrain.checkpoint import CheckpointFolder
from facetrain.classifier import ShardedClassifier
from facetrain.config import HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.distributed import Communicator, SingleCommunicator
from facetrain.errors import FacetrainError
from facetrain.head import build_center_optimizer, needs_whole_gradient
from facetrain.margins import build_margin
from facetrain.memory import MemoryManager
from facetrain.optim import LrSchedule
from facetrain.preprocessing import Preprocessing
from facetrain.run_log import RunLog
from facetrain.stop_request import StopRequest
from facetrain.trainer import Components, Trainer
from facetrain.zero import check_zero_stage
from facetrain_datasets.identity_dataset import FaceBatch
from tests.ranks import needs_horovod, raise_first, run_ranks

SIZE, CLASSES, SCALE, STEPS = 8, 5, 8.0, 2
OPTIM = OptimConfig(epochs=1, lr=1.0, momentum=0.9, weight_decay=0.01, max_gradient_norm=2.0)


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.PReLU(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Small(Backbone):
    """Blocks with BatchNorm on 7 x 7 pixels, and a frozen weight as in IResNet."""

    projection_name = "projection.weight"

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.convolution = nn.Conv2d(3, 6, 16, stride=16, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.projection = nn.Linear(6 * 49, SIZE, bias=False)
        self.features = nn.BatchNorm1d(SIZE)
        self.features.weight.requires_grad_(False)

    def segments(self) -> list[Segment]:
        return [
            Segment(
                "stem", lambda x: self.norm(self.convolution(x)), (self.convolution, self.norm)
            ),
            *(Segment(f"blocks.{n}", block, (block,)) for n, block in enumerate(self.blocks)),
            Segment(
                "head",
                lambda x: self.features(self.projection(x.flatten(1))),
                (self.projection, self.features),
            ),
        ]


def _backbone(name: str) -> Backbone:
    torch.manual_seed(0)
    backbone = Small() if name == "small" else build_backbone(name, SIZE)
    return backbone.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload,no-any-return]


def _batch(step: int, rows: list[list[int]]) -> list[list[FaceBatch]]:
    """Of one step, [micro-batch][rank]."""
    generator = torch.Generator().manual_seed(step)
    number, parts = 0, []
    for counts in rows:
        parts.append([])
        for count in counts:
            images = torch.randint(
                0, 256, (count, 3, 112, 112), generator=generator, dtype=torch.uint8
            )
            labels = torch.randint(CLASSES, (count,), generator=generator)
            parts[-1].append(FaceBatch(images, labels, torch.arange(count) + number, []))
            number += count
    return parts


def _batches(rank: int, rows: list[list[int]], start: int) -> Iterator[FaceBatch]:
    for step in range(start, STEPS):
        for part in _batch(step, rows):
            yield part[rank]


def _trainer(communicator: Communicator, folder: Path, config: RunConfig) -> Trainer:
    backbone = _backbone(config.model.backbone)
    head = ShardedClassifier(
        CLASSES,
        SIZE,
        build_margin(config.head.margin),
        communicator,
        scale=SCALE,
        optimizer=build_center_optimizer(config),
        step_in_backward=not needs_whole_gradient(config),
        head_ranks=config.head.head_ranks,
        seed=3,
    )
    parts = Components(
        backbone,
        MemoryManager.fit(backbone, torch.empty(0), None),
        head,
        Preprocessing(),
        LrSchedule("constant", 0.05, 0, STEPS),
        communicator,
        CheckpointFolder(folder / "checkpoints", communicator),
        RunLog(None, visible=False, start_step=0),
        facts={"classes": CLASSES},
        describe_image=str,
    )
    return Trainer(config, parts)


def _run(
    communicator: Communicator,
    folder: Path,
    optim: OptimConfig,
    head: HeadConfig,
    rows: list[list[int]],
    resume_step: int = 0,
    name: str = "small",
) -> dict[str, Any]:
    """Train to the last step; what there is then, whole."""
    config = RunConfig(
        model=ModelConfig(name), head=head, optim=optim, checkpoint_every=1, log_every=1
    )
    trainer = _trainer(communicator, folder, config)
    if resume_step:
        trainer.resume(resume_step)
    losses: list[float] = []
    do_step = trainer._do_step

    def kept(*arguments: Any, **options: Any) -> tuple[float, int]:
        loss, num_rows = do_step(*arguments, **options)
        losses.append(loss)
        return loss, num_rows

    trainer._do_step = kept  # type: ignore[method-assign]
    with trainer._parts.log:
        outcome = trainer.fit(_batches(communicator.rank, rows, trainer.step))
    head_layer = trainer._parts.head
    centers = head_layer.inside.all_gather(head_layer.centers.detach(), head_layer.class_counts)
    state = trainer.trained_backbone().state_dict()
    return {
        **{name: value.clone() for name, value in state.items()},
        "centers": centers,
        "losses": torch.tensor(losses),
        "skipped": torch.tensor(outcome.totals.skipped_steps),
    }


def _in_double(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
    """The forward pass without the head's rounding to fp32."""
    *blocks, head = backbone.segments()
    for block in blocks:
        images = block.forward(images)
    if isinstance(backbone, Small):
        return head.forward(images)
    for module in head.modules:
        images = module(images)
    return images


def _reference(rows: list[list[int]], name: str = "small") -> dict[str, torch.Tensor]:
    """The same steps in float64 on one process: dense head, BatchNorm of each rank's rows apart."""
    world_size = len(rows[0])
    backbone = _backbone(name).double()
    backbones = [copy.deepcopy(backbone) for _ in range(world_size)]
    single = SingleCommunicator()
    centers = ShardedClassifier(CLASSES, SIZE, build_margin("cosface"), single, seed=3).centers
    centers = centers.detach().double().requires_grad_()
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    momenta = [torch.zeros_like(p) for p in (*parameters, centers)]
    losses = []
    for step in range(STEPS):
        batch = _batch(step, rows)
        num_rows = sum(sum(counts) for counts in rows)
        gradients = [torch.zeros_like(p) for p in (*parameters, centers)]
        total = 0.0
        for part in batch:
            for rank, own in enumerate(part):
                if not len(own):
                    continue
                with torch.no_grad():
                    for mine, theirs in zip(
                        backbones[rank].parameters(), backbone.parameters(), strict=True
                    ):
                        mine.copy_(theirs)
                images = Preprocessing().normalise(own.images).double()
                unit = functional.normalize(_in_double(backbones[rank], images))
                cosines = unit @ functional.normalize(centers).T
                margin = 0.35 * functional.one_hot(own.labels, CLASSES)
                loss = (
                    functional.cross_entropy(
                        SCALE * (cosines - margin), own.labels, reduction="sum"
                    )
                    / num_rows
                )
                trained = [p for p in backbones[rank].parameters() if p.requires_grad]
                for sum_, gradient in zip(
                    gradients, torch.autograd.grad(loss, [*trained, centers]), strict=True
                ):
                    sum_ += gradient
                total += loss.item()
        losses.append(total)
        norm = torch.stack([g.square().sum() for g in gradients[:-1]]).sum().sqrt()
        factor = min(1.0, OPTIM.max_gradient_norm / norm.item())
        with torch.no_grad():
            for index, value in enumerate((*parameters, centers)):
                scale = factor if index < len(parameters) else 1.0
                momenta[index] = (
                    OPTIM.momentum * momenta[index]
                    + scale * gradients[index]
                    + OPTIM.weight_decay * value
                )
                value -= 0.05 * momenta[index]
        # As at each checkpoint.
        for name, buffer in backbone.named_buffers():
            copies = [dict(one.named_buffers())[name] for one in backbones]
            if buffer.is_floating_point():
                buffer.copy_(torch.stack(copies).mean(0))
                for one in copies:
                    one.copy_(buffer)
            else:
                buffer.copy_(copies[0])
    return {
        **backbone.state_dict(),
        "centers": centers.detach(),
        "losses": torch.tensor(losses),
        "skipped": torch.tensor(0),
    }


def _assert_equal(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float = 1e-5
) -> None:
    """Within `tolerance` of each tensor's largest entry, or of a step's length."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name.endswith("num_batches_tracked"):
            continue  # each rank's own
        difference = (found[name].double() - value.double()).abs().max()
        assert difference <= tolerance * max(0.05, value.double().abs().max()), name


STAGES: dict[str, OptimConfig] = {
    "0": OPTIM,
    "1": replace(OPTIM, zero_stage=1),
    "2": replace(OPTIM, zero_stage=2),
    "3": replace(OPTIM, zero_stage=3),
    "3, keeping": replace(OPTIM, zero_stage=3, zero_keeps=("head", "blocks.0")),
}
GROUPED = HeadConfig(head_ranks=1)


def _all_stages(
    communicator: Communicator, folder: Path, rows: list[list[int]], head: HeadConfig, name: str
) -> list[dict[str, torch.Tensor]]:
    """One run after the other, for a process takes longer to start than to train here."""
    found = []
    for number, optim in enumerate(STAGES.values()):
        if name != "small" and optim.zero_keeps:
            optim = replace(optim, zero_keeps=("head", "layers.3.0"))
        optim = replace(optim, micro_batches=len(rows))
        found.append(_run(communicator, folder / str(number), optim, head, rows, name=name))
    return found


@pytest.mark.parametrize(
    ("rows", "head"),
    [
        ([[4, 6]], GROUPED),
        # A rank without rows in a micro-batch; a slice without rows of the 6 channels, too.
        pytest.param([[4, 3, 3], [3, 0, 4]], HeadConfig(), marks=pytest.mark.slow),
        pytest.param([[3, 4, 3, 5]], HeadConfig(head_ranks=2), marks=pytest.mark.slow),
        pytest.param([[0, 4], [5, 4]], GROUPED, marks=pytest.mark.slow),
    ],
)
def test_every_stage_takes_the_steps_of_one_process(
    rows: list[list[int]], head: HeadConfig, tmp_path: Path
) -> None:
    wanted = _reference(rows)
    for ranks in raise_first(run_ranks(_all_stages, len(rows[0]), tmp_path, rows, head, "small")):
        for found in ranks:
            _assert_equal(found, wanted)


@pytest.mark.slow
def test_every_stage_trains_a_real_backbone(tmp_path: Path) -> None:
    rows = [[6, 8]]
    wanted = _reference(rows, "mobilefacenet_tiny")
    arguments = (tmp_path, rows, HeadConfig(), "mobilefacenet_tiny")
    for ranks in raise_first(run_ranks(_all_stages, 2, *arguments)):
        for found in ranks:
            # Some activations round to the other side of PReLU's kink, twenty layers deep.
            _assert_equal(found, wanted, 1e-3)


def _resumed(communicator: Communicator, folder: Path, optim: OptimConfig) -> dict[str, Any]:
    return _run(communicator, folder, optim, HeadConfig(), [[4, 6]], resume_step=1)


def _in_turn(
    communicator: Communicator, folder: Path, kinds: list[OptimConfig]
) -> list[dict[str, Any]]:
    """One stage starts, the next goes on from its checkpoint of step 1, and so on."""
    found = [_run(communicator, folder / "0", kinds[0], HeadConfig(), [[4, 6]])]
    for number, optim in enumerate(kinds[1:], 1):
        if communicator.rank == 0:
            step = "checkpoints/step-00000001"
            shutil.copytree(folder / f"{number - 1}" / step, folder / f"{number}" / step)
        communicator.barrier()
        found.append(_resumed(communicator, folder / f"{number}", optim))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.slow)])
def test_a_stage_goes_on_from_any_other(optimizer: str, tmp_path: Path) -> None:
    order = ("3, keeping", "1", "2", "0", "3")
    momentum = OptimConfig.momentum if optimizer == "adamw" else 0.9
    kinds = [replace(STAGES[name], optimizer=optimizer, momentum=momentum) for name in order]
    # Each rank has its rows on its own; step 1 is whole in every checkpoint.
    for ranks in raise_first(run_ranks(_in_turn, 2, tmp_path, kinds)):
        straight = ranks[0]
        for found in ranks[1:]:
            assert found["losses"].tolist() == pytest.approx(straight["losses"].tolist()[1:])
            # AdamW divides by the root of squared gradients: rounding of small ones shows.
            tolerance = 1e-5 if optimizer == "sgd" else 1e-3
            _assert_equal({**found, "losses": straight["losses"]}, straight, tolerance)


def _spoiled(communicator: Communicator, folder: Path, stage: int) -> dict[str, Any]:
    """Rank 1's gradient is not finite in the first step."""
    optim = replace(OPTIM, zero_stage=stage)
    config = RunConfig(optim=optim, checkpoint_every=1, log_every=1)
    trainer = _trainer(communicator, folder, config)
    initial = {k: v.clone() for k, v in trainer._update.weights(wanted=True).items()}
    forward = trainer._parts.memory.forward

    def not_finite(images: torch.Tensor) -> torch.Tensor:
        embeddings = forward(images)
        if communicator.rank == 1:
            embeddings.register_hook(lambda gradient: gradient * float("nan"))
        return embeddings

    trainer._parts.memory.forward = not_finite  # type: ignore[method-assign]
    batches = list(_batches(communicator.rank, [[4, 6]], 0))
    counts = trainer._exchange(batches[:1], StopRequest())
    loss, _ = trainer._do_step(batches[:1], counts, measured=True)
    assert loss != loss
    assert trainer._totals.skipped_steps == 1
    _assert_equal(trainer._update.weights(wanted=True), initial, 0.0)
    trainer._parts.memory.forward = forward  # type: ignore[method-assign]
    loss, _ = trainer._do_step(batches[1:], counts, measured=False)
    return {"loss": loss}


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_gradient_that_is_not_finite_on_one_rank_changes_no_weight(
    stage: int, tmp_path: Path
) -> None:
    first, second = raise_first(run_ranks(_spoiled, 2, tmp_path, stage))
    assert first == second
    assert first["loss"] > 0


def _refusal(communicator: Communicator, optim: OptimConfig) -> str:
    with pytest.raises(FacetrainError) as raised:
        check_zero_stage(optim, Small(), communicator)
    return str(raised.value)


@needs_horovod
def test_stages_need_the_engine_torch() -> None:
    for message in raise_first(run_ranks(_refusal, 2, STAGES["1"], engine="horovod")):
        assert message.startswith("--zero-stage 1: shards by torch.distributed; use --engine torch")


def test_a_block_that_is_not_there_is_named_with_those_that_are() -> None:
    message = _refusal(SingleCommunicator(), replace(STAGES["3"], zero_keeps=("body",)))
    assert message == (
        "--zero-keeps body: no block of this backbone; it has stem, blocks.0, blocks.1, head"
    )


def test_one_process_has_nothing_to_shard(tmp_path: Path) -> None:
    trainer = _trainer(SingleCommunicator(), tmp_path, RunConfig(optim=STAGES["3"]))
    assert trainer.describe_update() is None
    assert trainer.trained_backbone() is trainer._parts.backbone
