"""Train on faces of your own, in any format, and evaluate on people held out or on a pair set.

    facetrain train faces --data my_faces.rec
    facetrain train faces --data my_faces --pairs lfw.bin --initial-weights runs/lfw

`facetrain data prepare` makes such a set from photos; docs/formats.md lists the formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from facetrain.command import run_recipe
from facetrain.config import (
    DataConfig,
    FlatRunConfig,
    HeadConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
)
from facetrain.errors import ConfigError, FacetrainError
from facetrain.evaluation.task import EvaluationTask, IdentitiesTask, PairsTask
from facetrain.evaluation.verification import check_both_kinds
from facetrain.run import train
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats import open_faces
from facetrain_datasets.protocols import open_pairs
from facetrain_datasets.selected_faces import SelectedFaces
from facetrain_datasets.source import FaceSource

DEFAULTS = RunConfig(
    model=ModelConfig(backbone="iresnet50", embedding_size=512),
    head=HeadConfig(margin="arcface", scale=64.0),
    optim=OptimConfig(epochs=20, global_batch_size=128, lr=0.02, schedule="linear"),
    data=DataConfig(transforms=("flip",), num_workers=2),
)
_MOST_HELD_OUT_IMAGES = 5_000


@dataclass(frozen=True)
class Flags:
    """Train on your own faces; evaluate on some of their people held out, or on --pairs."""

    data: Path
    """Aligned 112x112 faces: a folder per person, .rec, tar shards, Parquet, or a list."""
    format: str = "auto"
    """Format of --data, where it cannot be seen."""
    min_images: int = 2
    """People with fewer images are left out."""
    pairs: Path | None = None
    """Pair set to evaluate on (.bin, a list in LFW's form, CSV); default: people held out."""
    pair_images: Path | None = None
    """Folder of the images that --pairs names, where the file does not hold them."""
    held_out: float = 0.05
    """Share of the people to hold out and evaluate on; without --pairs."""
    run: FlatRunConfig = field(default_factory=lambda: DEFAULTS)


def main(flags: Flags) -> None:
    faces = open_faces(flags.data, flags.format, min_images=flags.min_images)
    if flags.pairs is not None:
        train(flags.run, faces, pairs_task(flags.pairs, flags))
        return
    held_out = held_out_people(faces, flags.held_out, flags.run.seed)
    others = np.setdiff1d(np.arange(len(faces.identities)), held_out)
    train(flags.run, SelectedFaces(faces, others), people_task(faces, held_out, flags.run))


def pairs_task(file: Path, flags: Flags) -> EvaluationTask:
    """Verification on a pair set."""
    pairs = open_pairs(file, flags.pair_images)
    check_both_kinds(pairs.is_same, f"{file}: pairs")
    return PairsTask(
        file.name,
        pairs.images(allow_grey=flags.run.data.allow_grey),
        pairs.left,
        pairs.right,
        pairs.is_same,
        pairs.num_folds if pairs.num_folds > 1 else PairsTask.num_folds,
    )


def held_out_people(faces: FaceSource, share: float, seed: int) -> np.ndarray:
    """Classes to hold out, ascending, drawn by the seed: two at least, of two images at least.

    Raises:
        FacetrainError: too few people for both training and evaluation.
    """
    if not 0 < share < 1:
        raise ConfigError([f"--held-out {share:g}: must be above 0 and below 1"])
    counts = np.bincount(faces.labels, minlength=len(faces.identities))
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(counts >= 2))
    # All of their images are compared with each other, so there may not be any number of them.
    most = int(np.searchsorted(np.cumsum(counts[drawn]), _MOST_HELD_OUT_IMAGES, side="right"))
    people = drawn[: max(2, min(round(share * len(counts)), most))]
    if len(people) < 2 or len(counts) - len(people) < 2:
        raise FacetrainError(
            f"{len(counts)} people, {len(drawn)} of them with two images: too few to hold some "
            "out; add people, or evaluate on --pairs"
        )
    return np.sort(people)


def people_task(faces: FaceSource, people: np.ndarray, run: RunConfig) -> EvaluationTask:
    """All images of these classes against each other."""
    held_out = SelectedFaces(faces, people)
    images = DecodedImages.of_source(held_out, allow_grey=run.data.allow_grey)
    title = f"{len(people)} people held out"
    return IdentitiesTask(title, images, held_out.labels, run.search)


if __name__ == "__main__":
    raise SystemExit(run_recipe(main, Flags, __file__))
