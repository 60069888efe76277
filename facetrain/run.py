"""One run from its config to its report: data, model, training, evaluation.

Recipes call `train`; everything they can choose is in the config, the source of training images
and the evaluation task.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch

from facetrain.backbones import Backbone, build_backbone
from facetrain.checkpoint import CheckpointFolder
from facetrain.classifier import ShardedClassifier
from facetrain.command import TrainingStopped
from facetrain.config import RunConfig
from facetrain.device import choose_device, choose_precision
from facetrain.distributed import Communicator, World, connect, on_first_rank
from facetrain.distributed.gradients import largest_bucket_bytes
from facetrain.embedder import MODEL_FILE, Embedder, TorchEmbedder, save_model
from facetrain.evaluation.baselines import PixelPca
from facetrain.evaluation.task import EvaluationTask, SystemResult, embed_over_ranks
from facetrain.margins import build_margin
from facetrain.memory import MemoryManager, parse_bytes, profile_backbone
from facetrain.optim import Schedule
from facetrain.preflight import check_sizes, load_dataset
from facetrain.preprocessing import Preprocessing
from facetrain.report.page import write_atomically
from facetrain.report.training import TrainingReport, summary, write_training_report
from facetrain.run_folder import CHECKPOINTS, choose_run_folder
from facetrain.run_log import RunLog, read_metrics
from facetrain.trainer import Components, Trainer, average_buffers
from facetrain_datasets.identity_dataset import IdentityDataset
from facetrain_datasets.loader import build_loader
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
    world = World.from_environment()
    device = choose_device(config.device, world.local_rank)
    communicator = connect(world, device, config.engine, config.timeout_s)
    check_sizes(config, source, communicator.world_size)
    folder, resume_step = on_first_rank(
        communicator, lambda: choose_run_folder(config.name, config.out, resume=config.resume)
    )
    first = communicator.rank == 0
    with RunLog(folder if first else None, visible=first, start_step=resume_step) as log:
        log.say(f"run folder {folder}")
        if first:
            write_atomically(folder / "config.json", json.dumps(config.to_dict(), indent=1) + "\n")
        preprocessing = Preprocessing()
        dataset = load_dataset(config, source, preprocessing, communicator, log)
        backbone = build_initial_backbone(config, device)
        model = TorchEmbedder(backbone, preprocessing, device, name=config.model.backbone)
        log.say(f"evaluation: {task.title}, {len(task.images):,} images")
        baselines = [evaluate("untrained network", model, task, communicator)]
        if pca:
            pixels = on_first_rank(communicator, lambda: fit_pca(dataset, config.seed))
            baselines.append(evaluate("raw pixels + PCA", pixels, task, communicator))

        schedule = Schedule.from_config(config.optim, len(dataset))
        log.say(schedule.describe(config.optim, len(dataset), communicator.world_size))
        precision = choose_precision(config.precision, device)
        memory = plan_memory(config, backbone, precision, communicator)
        log.say(memory.report().describe())
        trainer = Trainer(
            config,
            Components(
                backbone,
                memory,
                build_head(config, len(source.identities), precision, communicator),
                preprocessing,
                schedule,
                communicator,
                CheckpointFolder(folder / CHECKPOINTS, communicator),
                log,
                describe_image=source.describe,
            ),
        )
        if resume_step:
            trainer.resume(resume_step)
            log.say(f"resumed from step {resume_step:,} of {schedule.num_steps:,}")
        sampler = StreamSampler(
            len(dataset),
            config.optim.global_batch_size,
            schedule.num_steps,
            rank=communicator.rank,
            world_size=communicator.world_size,
            micro_batches=config.optim.micro_batches,
            seed=config.seed,
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
            log.say(
                f"stopped after step {outcome.step:,} of {schedule.num_steps:,}, checkpoint saved; "
                "go on with the same command and --resume"
            )
            communicator.close()
            raise TrainingStopped

        average_buffers(backbone, communicator)
        systems = [evaluate("trained network", model, task, communicator), *baselines]
        memory_reports = communicator.all_gather_object(memory.report())
        if first:
            save_model(folder / MODEL_FILE, config.model.backbone, backbone, preprocessing)
            report = TrainingReport(
                title=f"{config.name}: {task.title}",
                command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                systems=systems,
                headline=task.headline,
                outcome=outcome,
                memory=memory_reports,
                metrics=read_metrics(folder),
                config=config.to_dict(),
                num_images=len(dataset),
                num_classes=len(source.identities),
                precision="bf16" if precision else "fp32",
                seconds=time.monotonic() - started,
            )
            write_training_report(folder, report)
            log.say("\n" + summary(report, folder))
    communicator.close()
    return folder


def build_initial_backbone(config: RunConfig, device: torch.device) -> Backbone:
    """The untrained backbone; equal on every rank, since it depends on the seed only."""
    torch.manual_seed(config.seed)
    backbone = build_backbone(
        config.model.backbone, config.model.embedding_size, config.model.dropout
    )
    # Images arrive in channels_last memory; convolutions run faster in it on CPU and GPU.
    backbone.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone.train()


def build_head(
    config: RunConfig,
    num_classes: int,
    product_dtype: torch.dtype | None,
    communicator: Communicator,
) -> ShardedClassifier:
    """This rank's share of the classification layer."""
    return ShardedClassifier(
        num_classes,
        config.model.embedding_size,
        build_margin(config.head.margin, config.head.margin_value),
        communicator,
        scale=config.head.scale,
        chunk_rows=config.head.chunk_rows,
        product_dtype=product_dtype or torch.float32,
        seed=config.seed,
    )


def plan_memory(
    config: RunConfig,
    backbone: Backbone,
    autocast_dtype: torch.dtype | None,
    communicator: Communicator,
) -> MemoryManager:
    """Fit the backbone's step into `config.memory`; one rank measures, all plan alike."""
    if config.memory is None:
        return MemoryManager.fit(backbone, torch.empty(0), None, autocast_dtype=autocast_dtype)
    optim = config.optim
    rows = -(-optim.global_batch_size // (optim.micro_batches * communicator.world_size))
    size = backbone.image_size
    example = torch.zeros((rows, 3, size, size), device=communicator.device)
    example = example.contiguous(memory_format=torch.channels_last)
    accumulates = optim.micro_batches > 1
    profile = on_first_rank(
        communicator,
        lambda: profile_backbone(
            backbone, example, autocast_dtype=autocast_dtype, accumulates=accumulates
        ),
    )
    return MemoryManager.fit(
        backbone,
        example,
        parse_bytes(config.memory),
        autocast_dtype=autocast_dtype,
        accumulates=accumulates,
        profile=profile,
        reserved_bytes=(
            largest_bucket_bytes(backbone.parameters()) if communicator.world_size > 1 else 0
        ),
    )


def evaluate(
    name: str, embedder: Embedder, task: EvaluationTask, communicator: Communicator
) -> SystemResult:
    """One system through the task; embedding is shared by the ranks, scoring done by rank 0."""
    embeddings = embed_over_ranks(embedder, task.images, communicator)
    headline, result = on_first_rank(communicator, lambda: task.score(embeddings))
    return SystemResult(name, embedder.describe(), headline, result)


def fit_pca(dataset: IdentityDataset, seed: int) -> PixelPca:
    """Principal components of the training images, or of a seeded sample of them."""
    chosen = np.random.default_rng(seed).permutation(len(dataset))[:_PCA_IMAGES]
    images = (dataset.image(int(item)) for item in np.sort(chosen))
    return PixelPca.fit(images, min(_PCA_COMPONENTS, len(chosen) - 1))
