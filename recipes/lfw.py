"""Train on the part of LFW whose people its view-1 test list does not name, and evaluate on that.

    facetrain train lfw --data lfw112 --protocols protocols
    torchrun --nproc-per-node 2 recipes/lfw.py --data lfw112 --protocols protocols

`lfw112` holds one folder per person with aligned 112x112 faces, `protocols` the public pair lists.
1,262 people with two or more images remain: enough to see that the pipeline learns, no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from facetrain.command import run_recipe
from facetrain.config import (
    DataConfig,
    FlatRunConfig,
    HeadConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
)
from facetrain.evaluation.task import PairsTask
from facetrain.run import train
from facetrain_datasets.formats.image_folder import ImageFolder
from facetrain_datasets.protocols.lfw_pairs import read_lfw_pairs

DEFAULTS = RunConfig(
    num_processes=2,
    memory="110MiB",
    model=ModelConfig(backbone="mobilefacenet_tiny", embedding_size=128),
    head=HeadConfig(margin="cosface", margin_value=0.1, scale=32.0),
    optim=OptimConfig(epochs=12, global_batch_size=64, lr=1.6, warmup_epochs=1, schedule="cosine"),
    data=DataConfig(transforms=("flip", "shift_scale", "color")),
)


@dataclass(frozen=True)
class Flags:
    """Train on LFW without the people of its view-1 test list, evaluate on that list."""

    data: Path
    """Folder of LFW, aligned: one folder per person, 112x112 images."""
    protocols: Path
    """Folder that holds lfw_pairsDevTest.txt."""
    run: FlatRunConfig = field(default_factory=lambda: DEFAULTS)


def main(flags: Flags) -> None:
    test = read_lfw_pairs(flags.protocols / "lfw_pairsDevTest.txt")
    pairs = test.resolve(flags.data)
    train(
        flags.run,
        ImageFolder(flags.data, exclude=test.identities(), min_images=2),
        PairsTask(
            "LFW DevTest (view 1)",
            pairs.images(allow_grey=flags.run.data.allow_grey),
            pairs.left,
            pairs.right,
            pairs.is_same,
        ),
    )


if __name__ == "__main__":
    raise SystemExit(run_recipe(main, Flags, __file__))
