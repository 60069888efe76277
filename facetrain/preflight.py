"""What is checked before training starts, so that nothing is found out hours later."""

from __future__ import annotations

import numpy as np

from facetrain.config import RunConfig
from facetrain.distributed import Communicator, on_first_rank
from facetrain.errors import FacetrainError
from facetrain.preprocessing import Preprocessing
from facetrain.run_log import RunLog
from facetrain_datasets.decode import check_images
from facetrain_datasets.identity_dataset import IdentityDataset
from facetrain_datasets.source import FaceSource
from facetrain_datasets.transforms import Augmentation

_SHOWN = 3


def check_sizes(config: RunConfig, source: FaceSource, world_size: int) -> None:
    """Whether every process gets classes and enough rows.

    Raises:
        FacetrainError: names the numbers and what to change.
    """
    num_classes = len(source.identities)
    if num_classes < world_size:
        raise FacetrainError(
            f"{world_size} processes for {num_classes} identities: each needs one at least; use "
            f"at most {num_classes} processes"
        )
    optim = config.optim
    parts = optim.micro_batches * world_size
    if optim.global_batch_size // parts < 2:
        raise FacetrainError(
            f"--global-batch-size {optim.global_batch_size} over {world_size} processes x "
            f"{optim.micro_batches} micro-batches: BatchNorm needs 2 images in each part; use "
            f"{2 * parts} at least"
        )


def load_dataset(
    config: RunConfig,
    source: FaceSource,
    preprocessing: Preprocessing,
    communicator: Communicator,
    log: RunLog,
) -> IdentityDataset:
    """The training images, looked through by rank 0: all of them, or a sample of 50,000.

    Raises:
        FacetrainError: images that cannot be used, unless `bad_images` is "skip".
    """
    data = config.data
    bad = on_first_rank(
        communicator,
        lambda: check_images(
            source,
            image_size=preprocessing.image_size,
            allow_grey=data.allow_grey,
            seed=config.seed,
        ),
    )
    if bad and data.bad_images == "stop":
        more = f" (and {len(bad) - 1} more bad images)" if len(bad) > 1 else ""
        raise FacetrainError(f"{bad[0].reason}{more}; --bad-images skip leaves such images out")
    keep = None
    if bad:
        shown = "; ".join(image.reason for image in bad[:_SHOWN])
        log.skipped(0, f"{len(bad)} bad images left out: {shown}", [image.reason for image in bad])
        keep = np.setdiff1d(np.arange(len(source)), [image.index for image in bad])
        if len(keep) == 0:
            raise FacetrainError(f"{bad[0].reason} (and no image is left)")
    log.say(f"training images: {len(source) - len(bad):,} of {len(source.identities):,} identities")
    return IdentityDataset(
        source,
        image_size=preprocessing.image_size,
        allow_grey=data.allow_grey,
        augmentation=Augmentation(data.transforms, config.seed),
        keep=keep,
    )
