"""Memory of a loader over three epochs of a million records: minutes, marked slow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch.multiprocessing

from facetrain_datasets.formats import open_faces
from facetrain_datasets.formats.rec import RecWriter
from facetrain_datasets.identity_dataset import IdentityDataset
from facetrain_datasets.loader import build_loader
from facetrain_datasets.orders import ShuffledOrder
from facetrain_datasets.samplers import StreamSampler
from facetrain_datasets.transforms import Augmentation

NUM_IMAGES, NUM_IDENTITIES, NUM_WORKERS, SIZE, BATCH = 1_000_000, 50_000, 4, 8, 500


def _own_bytes(process_id: int) -> int:
    """What a process holds beside the pages of mapped files, which the system can take back."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return sum(int(kib) for kib in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", status)) * 1024


@pytest.fixture(scope="module")
def million_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("million")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (200, SIZE, SIZE, 3), dtype=np.uint8)
    encoded = [cv2.imencode(".jpg", pixels)[1].tobytes() for pixels in drawn]
    labels = np.repeat(np.arange(NUM_IDENTITIES), NUM_IMAGES // NUM_IDENTITIES)

    def images() -> Iterator[bytes]:
        for index in range(NUM_IMAGES):
            yield encoded[index % len(encoded)]

    writer = RecWriter(folder, [f"person {i}" for i in range(NUM_IDENTITIES)], labels)
    writer.finish(writer.write(0, images(), 0))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # 4 workers on fewer cores
def test_memory_is_flat_over_three_epochs_of_a_million_records(million_records: Path) -> None:
    source = open_faces(million_records)
    assert len(source) == NUM_IMAGES
    dataset = IdentityDataset(
        source, image_size=SIZE, allow_grey=False, augmentation=Augmentation(("flip",), 0)
    )
    steps_per_epoch = NUM_IMAGES // BATCH
    sampler = StreamSampler(
        ShuffledOrder(NUM_IMAGES, 0), BATCH, 3 * steps_per_epoch, rank=0, world_size=1
    )
    batches = iter(build_loader(dataset, sampler, num_workers=NUM_WORKERS, pin_memory=False))
    workers = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
    processes = [torch.multiprocessing.current_process().pid, *workers]
    seen = np.zeros(NUM_IMAGES, np.int64)
    held_bytes = []
    for step, batch in enumerate(batches, start=1):
        assert batch.skipped == []
        seen[batch.indices.numpy()] += 1
        # The first tenth of an epoch sets things up; the last batches end the workers.
        if step % (steps_per_epoch // 10) == 0 and step < 3 * steps_per_epoch - 20:
            held_bytes.append([_own_bytes(process) for process in processes])
    assert (seen == 3).all()
    held = np.array(held_bytes)
    growth = held[-1] - held[1]
    # 2 MiB of 3 million images are less than one byte an image.
    assert (growth < 2 * 2**20).all(), held.tolist()
