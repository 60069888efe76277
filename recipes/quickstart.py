"""Draw faces, train on them with two processes, evaluate on people never seen: no data needed.

facetrain train quickstart
torchrun --nproc-per-node 2 recipes/quickstart.py
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
from facetrain.distributed import World, even_counts
from facetrain.errors import ConfigError, FacetrainError
from facetrain.evaluation.task import IdentitiesTask
from facetrain.run import train
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats.image_folder import ImageFolder
from facetrain_datasets.synthetic import write_synthetic_faces

DEFAULTS = RunConfig(
    num_processes=2,
    memory="110MiB",
    model=ModelConfig(backbone="mobilefacenet_tiny", embedding_size=128),
    head=HeadConfig(margin="cosface", margin_value=0.2, scale=32.0),
    optim=OptimConfig(epochs=5, global_batch_size=64, lr=1.6, warmup_epochs=0.5, schedule="cosine"),
    data=DataConfig(transforms=("flip",)),
)


@dataclass(frozen=True)
class Flags:
    """Train on drawn faces and evaluate on people held out."""

    identities: int = 200
    """People to train on."""
    images_per_identity: int = 10
    """Images of each."""
    held_out_identities: int = 40
    """People to evaluate on."""
    faces: Path = Path("runs/synthetic-faces")
    """Where the drawn faces are kept; drawn once."""
    run: FlatRunConfig = field(default_factory=lambda: DEFAULTS)


def main(flags: Flags) -> None:
    check(flags)
    held_out = draw(flags, "held-out", flags.held_out_identities, flags.identities)
    train(
        flags.run,
        draw(flags, "training", flags.identities, 0),
        IdentitiesTask(
            f"{flags.held_out_identities} synthetic people held out",
            DecodedImages.of_source(held_out),
            held_out.labels,
            flags.run.search,
        ),
    )


def check(flags: Flags) -> None:
    """Refuses sets that nothing can be learnt from or compared in.

    Raises:
        ConfigError: names every count that is too small.
    """
    counts = {
        "identities": flags.identities,
        "images-per-identity": flags.images_per_identity,
        "held-out-identities": flags.held_out_identities,
    }
    problems = [f"--{n} {count}: must be at least 2" for n, count in counts.items() if count < 2]
    if problems:
        raise ConfigError(problems)


def draw(flags: Flags, kind: str, num_identities: int, first_identity: int) -> ImageFolder:
    """The drawn faces of some people; processes share the drawing of those not there yet.

    Raises:
        FacetrainError: the folder holds other people too.
    """
    seed, per_identity = flags.run.seed, flags.images_per_identity
    # A range has a folder of its own, so that no set ever holds people of another.
    people = f"{first_identity}-{first_identity + num_identities}"
    folder = flags.faces / f"{kind}-{people}x{per_identity}-seed{seed}"
    world = World.from_environment()
    shares = even_counts(num_identities, world.world_size)
    mine = first_identity + sum(shares[: world.rank])
    # One's own share first; then whatever another process has not finished.
    for first, count in ((mine, shares[world.rank]), (first_identity, num_identities)):
        if count:
            write_synthetic_faces(
                folder,
                num_identities=count,
                images_per_identity=per_identity,
                seed=seed,
                first_identity=first,
            )
    source = ImageFolder(folder)
    if len(source.identities) != num_identities:
        raise FacetrainError(
            f"{folder}: holds {len(source.identities)} people, {num_identities} were drawn; "
            "delete the folder, it is drawn again"
        )
    return source


if __name__ == "__main__":
    raise SystemExit(run_recipe(main, Flags, __file__))
