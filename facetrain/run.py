"""One run from its config to its report: data, model, training, evaluation.

Recipes call `train`; everything they can choose is in the config, the source of training images
and the evaluation task.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from facetrain.backbones import Backbone, build_backbone
from facetrain.checkpoint import CHECKPOINTS, CheckpointFolder
from facetrain.command import command_line
from facetrain.config import RunConfig
from facetrain.device import choose_precision, device_for
from facetrain.distributed import Communicator, World, connect, on_first_rank
from facetrain.distributed.gradients import largest_bucket_bytes
from facetrain.embedder import Embedder, TorchEmbedder
from facetrain.errors import FacetrainError, TrainingStopped
from facetrain.evaluation.baselines import PixelPca
from facetrain.evaluation.task import EvaluationTask, SystemResult, embed_over_ranks
from facetrain.head import build_head, describe_head, load_initial_centers
from facetrain.memory import MemoptError, MemoryManager, parse_bytes, time_operators
from facetrain.model_files import MODEL_FILE, load_initial_weights, save_model
from facetrain.optim import LrSchedule
from facetrain.planning.execution import Room, plan_of_run, plan_result, room_for_backbone
from facetrain.preflight import check_sizes, load_dataset
from facetrain.preprocessing import Preprocessing
from facetrain.report.page import write_atomically
from facetrain.report.training import REPORT_FILE, TrainingReport, summary, write_training_report
from facetrain.run_folder import choose_run_folder
from facetrain.run_log import RunLog, read_metrics
from facetrain.trainer import Components, Trainer
from facetrain.zero import check_zero_stage
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import IdentityDataset
from facetrain_datasets.loader import build_loader
from facetrain_datasets.orders import ORDERS, Order
from facetrain_datasets.samplers import StreamSampler
from facetrain_datasets.source import FaceSource

_PCA_IMAGES = 5000
_PCA_COMPONENTS = 128


def train(config: RunConfig, source: FaceSource, task: EvaluationTask, *, pca: bool = True) -> Path:
    """Train on `source`, evaluate by `task`, write a report; every rank of the world calls it.

    Args:
        source: training images; the evaluation's identities must not be among them.
        task: the evaluation, which the trained and the untrained network go through.
        pca: evaluate raw pixels with PCA as well.

    Returns:
        The run folder, with report.html, results.json, model.pt and the checkpoints.

    Raises:
        FacetrainError: bad input, on every rank.
        TrainingStopped: asked to stop; a checkpoint was saved.
    """
    started = time.monotonic()
    config.check()
    name = config.name or "run"
    world = World.from_environment()
    device, device_note = device_for(config.device, world)
    communicator = connect(world, device, config.engine, config.timeout_s)
    check_sizes(config, source, communicator.world_size)
    run = on_first_rank(
        communicator, lambda: choose_run_folder(name, config.out, resume=config.resume)
    )
    folder, first = run.path, communicator.rank == 0
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, communicator)
    preprocessing = Preprocessing()
    facts = {**run_facts(config, source), "preprocessing": preprocessing.to_dict()}
    if run.resume_step:
        # Before anything of the run is changed.
        on_first_rank(communicator, lambda: checkpoints.check(run.resume_step, facts))
    if run.finished:
        if first:
            print(f"run folder {folder} is finished, see {folder / REPORT_FILE}; nothing to resume")
        communicator.close()
        return folder
    with RunLog(folder if first else None, visible=first, start_step=run.resume_step) as log:
        log.say(f"run folder {folder}")
        if device_note:
            log.say(device_note)
        if first:
            write_config(folder, config)
        # What may not fit, or not match, comes before what takes long.
        precision = choose_precision(config.precision, device)
        plan, room = None, None
        if config.plan is not None:
            plan = plan_of_run(config, len(source.identities), communicator, device)
            config = plan.applied(config)
            if first:
                write_config(folder, config)
            log.say(f"--plan {config.plan}: {plan.describe()}")
        head = build_head(config, len(source.identities), precision, communicator, world)
        log.say(describe_head(head, config.optim.largest_micro_batch))
        if config.head.initial_centers is not None and not run.resume_step:
            log.say(load_initial_centers(head, config.head.initial_centers))
        backbone = build_initial_backbone(config, device)
        check_zero_stage(config.optim, backbone, communicator)
        if plan is not None:
            room = room_for_backbone(plan, config, backbone, head, communicator)
        memory = plan_memory(config, backbone, precision, communicator, room)
        log.say(memory.report().describe())
        dataset = load_dataset(config, source, preprocessing, communicator, log)
        model = TorchEmbedder(backbone, preprocessing, device, name=config.model.backbone)
        log.say(f"evaluation: {task.title}, {len(task.images):,} images")
        before = "untrained network" if config.model.initial_weights is None else "initial network"
        baselines = [evaluate(before, model, task, communicator)]
        if pca:
            pixels = on_first_rank(communicator, lambda: fit_pca(dataset, config.seed))
            baselines.append(evaluate("raw pixels + PCA", pixels, task, communicator))

        schedule = LrSchedule.from_config(config.optim, len(dataset))
        log.say(schedule.describe(config.optim, len(dataset), communicator.world_size))
        trainer = Trainer(
            config,
            Components(
                backbone,
                memory,
                head,
                preprocessing,
                schedule,
                communicator,
                checkpoints,
                log,
                facts={**facts, "training images": len(dataset)},
                describe_image=source.describe,
            ),
        )
        if sharded := trainer.describe_update():
            log.say(f"--zero-stage {config.optim.zero_stage}: {sharded}")
        if run.resume_step:
            trainer.resume(run.resume_step)
            log.say(f"resumed from step {run.resume_step:,} of {schedule.num_steps:,}")
        sampler = StreamSampler(
            build_order(config, dataset.labels),
            config.optim.global_batch_size,
            schedule.num_steps,
            rank=communicator.rank,
            world_size=communicator.world_size,
            micro_batches=config.optim.micro_batches,
            start_step=trainer.step,
        )
        outcome = trainer.fit(
            build_loader(
                dataset,
                sampler,
                num_workers=config.data.num_workers,
                pin_memory=device.type == "cuda",
            )
        )
        if outcome.stopped:
            saved = "checkpoint saved; go on with the same command and --resume"
            log.say(
                f"stopped after step {outcome.step:,} of {schedule.num_steps:,}"
                + (f", {saved}" if outcome.step else ", nothing to save")
            )
            communicator.close()
            raise TrainingStopped

        backbone = trainer.trained_backbone()
        model = replace(model, backbone=backbone)
        systems = [evaluate("trained network", model, task, communicator), *baselines]
        memory_reports = communicator.all_gather_object(memory.report())
        plan_outcome = None
        if plan is not None and room is not None:
            step_us = config.optim.global_batch_size * outcome.compute_s_per_image * 1e6
            plan_outcome = plan_result(plan, room, memory_reports, step_us)
            log.say(plan_outcome.describe())

        def write_results() -> None:
            save_model(folder / MODEL_FILE, config.model.backbone, backbone, preprocessing)
            report = TrainingReport(
                title=f"{name}: {task.title}",
                command=command_line(),
                systems=[system for system in systems if system is not None],
                headline=task.headline,
                outcome=outcome,
                memory=memory_reports,
                plan=plan_outcome,
                metrics=read_metrics(folder),
                config=config.to_dict(),
                num_images=len(dataset),
                num_classes=len(source.identities),
                precision="bf16" if precision else "fp32",
                seconds=time.monotonic() - started,
            )
            write_training_report(folder, report)
            log.say("\n" + summary(report, folder))

        on_first_rank(communicator, write_results)
    communicator.close()
    return folder


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.json: the run's settings as they are, a plan's decisions included."""
    write_atomically(folder / "config.json", json.dumps(config.to_dict(), indent=1) + "\n")


def build_initial_backbone(config: RunConfig, device: torch.device) -> Backbone:
    """The backbone before training; equal on every rank."""
    torch.manual_seed(config.seed)
    backbone = build_backbone(
        config.model.backbone, config.model.embedding_size, config.model.dropout
    )
    if config.model.initial_weights is not None:
        load_initial_weights(backbone, config.model.initial_weights)
    # Images arrive in channels_last memory; convolutions run faster in it on CPU and GPU.
    backbone.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone.train()


def build_order(config: RunConfig, labels: np.ndarray) -> Order:
    """The stream of images that `config.data` asks for, of images with these class ids."""
    in_a_row = config.data.images_in_a_row
    options = {} if in_a_row is None else {"images_per_identity": in_a_row}
    return ORDERS[config.data.order](labels, seed=config.seed, **options)


def plan_memory(
    config: RunConfig,
    backbone: Backbone,
    autocast_dtype: torch.dtype | None,
    communicator: Communicator,
    room: Room | None = None,
) -> MemoryManager:
    """Fit the backbone's step into `config.memory`, or step and head into a plan's `room`.

    One rank measures, all plan alike.
    """
    budget_bytes = None if config.memory is None else parse_bytes(config.memory)
    loss_bytes = None
    if room is not None:
        budget_bytes, loss_bytes = room.budget_bytes, room.loss_bytes
    if budget_bytes is None:
        return MemoryManager.fit(
            backbone,
            torch.empty(0),
            None,
            autocast_dtype=autocast_dtype,
            loss_bytes=loss_bytes,
        )
    optim = config.optim
    rows = -(-optim.largest_micro_batch // communicator.world_size)
    size = backbone.image_size
    example = torch.zeros((rows, 3, size, size), device=communicator.device)
    example = example.contiguous(memory_format=torch.channels_last)
    costs = on_first_rank(
        communicator, lambda: time_operators(backbone, example, autocast_dtype=autocast_dtype)
    )
    try:
        return MemoryManager.fit(
            backbone,
            example,
            budget_bytes,
            autocast_dtype=autocast_dtype,
            accumulates=optim.micro_batches > 1,
            costs=costs,
            reserved_bytes=(
                largest_bucket_bytes(backbone.parameters()) if communicator.world_size > 1 else 0
            ),
            loss_bytes=loss_bytes,
        )
    except MemoptError as error:
        asked = f"--memory {config.memory}" if config.plan is None else f"--plan {config.plan}"
        raise FacetrainError(f"{asked}: {error}; --micro-batches cuts the batch") from error


def evaluate(
    name: str, embedder: Embedder, task: EvaluationTask, communicator: Communicator
) -> SystemResult | None:
    """One system through the task; embedding is shared by the ranks, scoring is rank 0's alone.

    Returns:
        The result on rank 0, None on the others: scores of all pairs are not worth sending.
    """
    embeddings = embed_over_ranks(embedder, task.images, communicator)
    results: list[SystemResult] = []

    def score() -> None:
        headline, result = task.score(embeddings)
        results.append(SystemResult(name, embedder.describe(), headline, result))

    on_first_rank(communicator, score)
    return results[0] if results else None


def run_facts(config: RunConfig, source: FaceSource) -> dict[str, Any]:
    """What a checkpoint and the run that goes on from it must share, by flag where it is one.

    The learning rate may change (to rescue a run), and so may whatever does not change the result.
    """
    model, head, optim = config.model, config.head, config.optim
    people = hashlib.sha256("\n".join(source.identities).encode()).hexdigest()[:16]
    return {
        "backbone": model.backbone,
        "embedding-size": model.embedding_size,
        "dropout": model.dropout,
        "margin": head.margin,
        "margin-value": head.margin_value,
        "margin-options": sorted(head.margin_options),
        "margin-gradient": head.margin_gradient,
        "scale": head.scale,
        "sub-centers": head.sub_centers,
        "sample-rate": head.sample_rate,
        "interclass-filtering-threshold": head.interclass_filtering_threshold,
        "center-momentum": head.center_momentum,
        "max-center-gradient-norm": head.max_center_gradient_norm,
        "optimizer": optim.optimizer,
        "epochs": optim.epochs,
        "global-batch-size": optim.global_batch_size,
        "schedule": optim.schedule,
        "warmup-epochs": optim.warmup_epochs,
        "momentum": optim.momentum,
        "weight-decay": optim.weight_decay,
        "transforms": list(config.data.transforms),
        "order": config.data.order,
        "images-in-a-row": config.data.images_in_a_row,
        "seed": config.seed,
        "identities": f"{len(source.identities)} ({people})",
        "images": len(source),
    }


def fit_pca(dataset: IdentityDataset, seed: int) -> PixelPca:
    """Principal components of the training images, or of a seeded sample of them."""
    chosen = np.random.default_rng(seed).permutation(len(dataset))[:_PCA_IMAGES]

    def readable() -> Iterator[np.ndarray]:
        for item in np.sort(chosen):
            # Preflight has named the bad images it saw; of a large set it saw a sample.
            try:
                image = dataset.image(int(item))
            except (DatasetError, OSError):
                continue
            yield image

    return PixelPca.fit(readable(), max(1, min(_PCA_COMPONENTS, len(chosen) // 2)))
