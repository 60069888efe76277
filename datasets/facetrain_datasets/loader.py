"""Batches of faces for the trainer: `for batch in build_loader(dataset, sampler, ...)`.

Legend: B rows of this rank in one micro-batch, image size H x W.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import IdentityDataset, Sample, SkippedImage
from facetrain_datasets.samplers import StreamSampler


@dataclass(frozen=True)
class FaceBatch:
    """What one rank gets in one micro-batch; B may be 0 when every image was skipped.

    Attributes:
        images: uint8 [B, 3, H, W] RGB in channels_last memory.
        labels: int64 [B], class ids.
        indices: int64 [B], where in the source each image lies.
        skipped: one line per image left out, naming the file and the reason.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    skipped: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def pin_memory(self) -> FaceBatch:
        """A copy in page-locked memory; the data loader calls it."""
        return FaceBatch(
            self.images.pin_memory(),
            self.labels.pin_memory(),
            self.indices.pin_memory(),
            self.skipped,
        )


def collate_faces(items: Sequence[Sample | SkippedImage], *, image_size: int) -> FaceBatch:
    """Stacks the samples, in order, and lists the skipped ones."""
    samples = [item for item in items if isinstance(item, Sample)]
    images = np.empty((len(samples), image_size, image_size, 3), np.uint8)
    for row, sample in zip(images, samples, strict=True):
        row[...] = sample.image
    return FaceBatch(
        images=torch.from_numpy(images).permute(0, 3, 1, 2),
        labels=torch.tensor([sample.label for sample in samples], dtype=torch.int64),
        indices=torch.tensor([sample.index for sample in samples], dtype=torch.int64),
        skipped=[item.reason for item in items if isinstance(item, SkippedImage)],
    )


def build_loader(
    dataset: IdentityDataset,
    sampler: StreamSampler,
    *,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[Sample | SkippedImage]:
    """A loader that yields one `FaceBatch` per micro-batch of the sampler, in its order.

    Args:
        dataset: the images.
        sampler: made for `len(dataset)` images.
        num_workers: processes that decode; 0 decodes in this one.
        pin_memory: page-locked batches, for copies to a GPU that overlap with work.

    Raises:
        DatasetError: the sampler was made for another number of images.
    """
    if sampler.num_samples != len(dataset):
        raise DatasetError(
            f"the sampler draws from {sampler.num_samples} images, the data set has "
            f"{len(dataset)}; make the sampler with num_samples={len(dataset)}"
        )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=partial(collate_faces, image_size=dataset.image_size),
        worker_init_fn=_prepare_worker,
    )


def _prepare_worker(worker: int) -> None:
    """Leave the stop to the process that trains, and the cores to the other workers."""
    # Ctrl-C reaches every process of a terminal; the trainer still needs batches to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(0)
