"""Where the time of reading faces goes: read, decode, transform, collate, and all of it together.

    report = measure_loader(open_faces("faces.rec"), transforms=("flip",), num_workers=4)

The stages and the whole take turns on the same images, and medians are reported, so that what else
the machine does meanwhile falls on all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from facetrain_datasets.decode import decode_face
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.identity_dataset import IdentityDataset
from facetrain_datasets.loader import MAX_WORKERS, build_loader
from facetrain_datasets.orders import ShuffledOrder
from facetrain_datasets.samplers import StreamSampler
from facetrain_datasets.source import FaceSource
from facetrain_datasets.transforms import Augmentation

STAGES = ("read", "decode", "transform", "collate")


@dataclass(frozen=True)
class LoaderReport:
    """Times in microseconds per image, medians over the batches.

    Attributes:
        stage_us: of each of `STAGES`, alone, on one core.
        bare_decode_us: of `cv2.imdecode` alone, on the same images.
        whole_us: of whole batches in this process, on one core.
        images_per_s: of the loader with its workers.
        num_workers: loader processes; 0 is this process.
        num_images: images measured.
        image_bytes: mean size of an encoded image.
    """

    stage_us: dict[str, float]
    bare_decode_us: float
    whole_us: float
    images_per_s: float
    num_workers: int
    num_images: int
    image_bytes: float

    @property
    def bound_by(self) -> str:
        """The stage that takes the most time."""
        return max(self.stage_us, key=self.stage_us.__getitem__)

    @property
    def share_of_bare_decode(self) -> float:
        """Speed of whole batches on one core over that of `cv2.imdecode` alone."""
        return self.bare_decode_us / self.whole_us


def measure_loader(
    source: FaceSource,
    *,
    image_size: int = 112,
    allow_grey: bool = False,
    transforms: Sequence[str] = ("flip",),
    num_images: int = 20_000,
    batch_size: int = 128,
    num_workers: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> LoaderReport:
    """Reads images in training's order, stage by stage and as a whole, then through the loader.

    Args:
        source: the images.
        num_images: images to read in all; rounded to whole batches, one at least.
        num_workers: loader processes of the last measurement.
        progress: called with the number of images done, of 2 `num_images`.

    Raises:
        DatasetError: an image that cannot be used, or a number out of its range.
    """
    for field, value, least in (
        ("num_images", num_images, 1),
        ("batch_size", batch_size, 1),
        ("num_workers", num_workers, 0),
    ):
        if value < least:
            raise DatasetError(f"{field} is {value}; allowed: {least} or more")
    if num_workers > MAX_WORKERS:
        raise DatasetError(f"num_workers is {num_workers}; allowed: up to {MAX_WORKERS}")
    num_batches = max(1, num_images // batch_size)
    augmentation = Augmentation(transforms, seed)
    dataset = IdentityDataset(
        source,
        image_size=image_size,
        allow_grey=allow_grey,
        augmentation=augmentation,
    )
    order = ShuffledOrder(len(source), seed)
    done = progress or (lambda _: None)
    stages = _Stages(dataset, augmentation, image_size, allow_grey)
    cv2.setNumThreads(0)  # as in a loader's worker
    times = []
    for batch in range(num_batches):
        positions = np.arange(batch * batch_size, (batch + 1) * batch_size)
        indices = order.indices(positions)
        times.append(stages.time(list(zip(positions.tolist(), indices.tolist(), strict=True))))
        done((batch + 1) * batch_size)
    medians = dict(
        zip(
            times[0],
            1e6 / batch_size * np.median([list(t.values()) for t in times], 0),
            strict=True,
        )
    )
    sampler = StreamSampler(order, batch_size, num_batches + 1, rank=0, world_size=1)
    batches = iter(build_loader(dataset, sampler, num_workers=num_workers, pin_memory=False))
    next(batches)  # the workers start with it
    started = time.perf_counter()
    for batch, _ in enumerate(batches):
        done((num_batches + batch + 1) * batch_size)
    return LoaderReport(
        stage_us={name: medians[name] for name in STAGES},
        bare_decode_us=medians["bare decode"],
        whole_us=medians["whole"],
        images_per_s=num_batches * batch_size / (time.perf_counter() - started),
        num_workers=num_workers,
        num_images=num_batches * batch_size,
        image_bytes=stages.num_bytes / (num_batches * batch_size),
    )


@dataclass
class _Stages:
    """The steps of a batch, one at a time."""

    dataset: IdentityDataset
    augmentation: Augmentation
    image_size: int
    allow_grey: bool
    num_bytes: int = 0

    def time(self, keys: list[tuple[int, int]]) -> dict[str, float]:
        """Seconds each stage takes for the images of `keys`."""
        size = self.image_size
        source = self.dataset.source
        seconds: dict[str, float] = {}

        def timed(name: str, run: Callable[[], list]) -> list:
            started = time.perf_counter()
            result = run()
            seconds[name] = time.perf_counter() - started
            return result

        whole = self.dataset.__getitems__  # first, so that it reads what no stage has read
        batch = timed("whole", lambda: [whole(keys)])[0]
        if batch.skipped:
            raise DatasetError(batch.skipped[0])
        encoded = timed("read", lambda: [source.read(index) for _, index in keys])
        self.num_bytes += sum(map(len, encoded))

        def bare_decode() -> list:
            for data in encoded:  # nothing is kept: the memory of one image serves for all
                cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
            return []

        timed("bare decode", bare_decode)
        images = timed(
            "decode", lambda: [decode_face(data, size, self.allow_grey) for data in encoded]
        )
        images = timed("transform", lambda: self._transformed(images, keys))
        rows = np.empty((len(keys), size, size, 3), np.uint8)

        def collate() -> list:
            for row, image in zip(rows, images, strict=True):
                row[...] = image
            return []

        timed("collate", collate)
        return seconds

    def _transformed(
        self, images: list[np.ndarray], keys: list[tuple[int, int]]
    ) -> list[np.ndarray]:
        chosen = self.augmentation.choose([position for position, _ in keys])
        return [
            self.augmentation.apply(image, position, changes)
            for image, (position, _), changes in zip(images, keys, chosen, strict=True)
        ]
