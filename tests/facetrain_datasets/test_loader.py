from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import FaceBatch, IdentityDataset
from facetrain_datasets.loader import build_loader
from facetrain_datasets.orders import ShuffledOrder
from facetrain_datasets.samplers import StreamSampler
from facetrain_datasets.transforms import Augmentation


def _batches(source: object, num_workers: int = 0, **changes: int) -> list[FaceBatch]:
    augmentation = Augmentation(("flip", "color", "cutout"), seed=0)
    dataset = IdentityDataset(source, image_size=16, allow_grey=False, augmentation=augmentation)
    arguments = {"rank": 0, "world_size": 1, **changes}
    sampler = StreamSampler(ShuffledOrder(len(dataset), 3), 4, 5, **arguments)
    return list(build_loader(dataset, sampler, num_workers=num_workers, pin_memory=False))


def test_batch_follows_the_sampler(make_source: Callable) -> None:
    source = make_source(11)
    sampler = StreamSampler(ShuffledOrder(11, 3), 4, 5, rank=0, world_size=1)
    batches = _batches(source)
    assert len(batches) == 5
    for keys, batch in zip(sampler, batches, strict=True):
        assert batch.indices.tolist() == [index for _, index in keys]
        assert batch.labels.tolist() == [index // 3 for _, index in keys]
        assert (len(batch), batch.skipped) == (4, [])
        assert batch.images.dtype == torch.uint8
        assert batch.images.shape == (4, 3, 16, 16)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.labels.dtype == batch.indices.dtype == torch.int64


def test_pixels_are_rgb_in_place(make_source: Callable) -> None:
    source = make_source(3)
    dataset = IdentityDataset(source, image_size=16, allow_grey=False)
    sampler = StreamSampler(ShuffledOrder(3, 0), 3, 1, rank=0, world_size=1)
    (batch,) = build_loader(dataset, sampler, num_workers=0, pin_memory=False)
    for image, index in zip(batch.images.numpy(), batch.indices.tolist(), strict=True):
        np.testing.assert_array_equal(image[:, 5, 6], (index, 2 * index, 255 - index))


def test_workers_and_resume_change_nothing(make_source: Callable) -> None:
    source = make_source(11)
    whole = _batches(source)
    resumed = _batches(source, num_workers=2, start_step=2)
    for expected, batch in zip(whole[2:], resumed, strict=True):
        assert torch.equal(expected.images, batch.images)
        assert torch.equal(expected.labels, batch.labels)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_workers_outlive_ctrl_c(make_source: Callable) -> None:
    source = make_source(11)
    dataset = IdentityDataset(source, image_size=16, allow_grey=False)
    sampler = StreamSampler(ShuffledOrder(11, 3), 4, 20, rank=0, world_size=1)
    batches = iter(build_loader(dataset, sampler, num_workers=2, pin_memory=False))
    next(batches), next(batches)  # one of each worker, so both have started
    for worker in batches._workers:  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGINT)
    assert len(list(batches)) == 18


def test_ranks_together_see_what_one_process_sees(make_source: Callable) -> None:
    source = make_source(11)
    ranks = [_batches(source, rank=rank, world_size=3) for rank in range(3)]
    for whole, *parts in zip(_batches(source), *ranks, strict=True):
        assert torch.equal(whole.images, torch.cat([part.images for part in parts]))


def test_skipped_images_are_listed_and_left_out(make_source: Callable) -> None:
    source = make_source(4)
    source.images[2] = b"broken"
    for batch in _batches(source):
        assert sorted(batch.indices.tolist()) == [0, 1, 3]
        assert len(batch.images) == 3
        assert [line.split(":")[0] for line in batch.skipped] == ["image2"]


def test_batch_of_skipped_images_is_empty(make_source: Callable) -> None:
    source = make_source(4)
    source.images = [b"broken"] * 4
    batch = _batches(source)[0]
    assert batch.images.shape == (0, 3, 16, 16)
    assert batch.labels.dtype == torch.int64
    assert (len(batch), len(batch.skipped)) == (0, 4)


def test_sampler_of_another_data_set_is_refused(make_source: Callable) -> None:
    dataset = IdentityDataset(make_source(4), image_size=16, allow_grey=False)
    sampler = StreamSampler(ShuffledOrder(5, 0), 2, 1, rank=0, world_size=1)
    with pytest.raises(DatasetError, match=r"draws from 5 images, the data set has 4"):
        build_loader(dataset, sampler, num_workers=0, pin_memory=False)
