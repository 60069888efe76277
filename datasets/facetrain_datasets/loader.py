"""Batches of faces for the trainer: `for batch in build_loader(dataset, sampler, ...)`."""

from __future__ import annotations

import signal

import cv2
from torch.utils.data import DataLoader

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import FaceBatch, IdentityDataset
from facetrain_datasets.samplers import StreamSampler

#: More would but exhaust the machine.
MAX_WORKERS = 1024


def build_loader(
    dataset: IdentityDataset,
    sampler: StreamSampler,
    *,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[FaceBatch]:
    """A loader that yields one `FaceBatch` per micro-batch of the sampler, in its order.

    Args:
        dataset: the images.
        sampler: made for `len(dataset)` images.
        num_workers: processes that decode; 0 decodes in this one.
        pin_memory: page-locked batches, for copies to a GPU that overlap with work.

    Raises:
        DatasetError: the sampler was made for another number of images.
    """
    if sampler.order.num_samples != len(dataset):
        raise DatasetError(
            f"the sampler draws from {sampler.order.num_samples} images, the data set has "
            f"{len(dataset)}; make its order for {len(dataset)} images"
        )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=_as_it_is,  # type: ignore[arg-type]
        worker_init_fn=_prepare_worker,
    )


def _as_it_is(batch: FaceBatch) -> FaceBatch:
    return batch


def _prepare_worker(worker: int) -> None:
    """Leave the stop to the process that trains, and the cores to the other workers."""
    # Ctrl-C reaches every process of a terminal; the trainer still needs batches to stop in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(0)
