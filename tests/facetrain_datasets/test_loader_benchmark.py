from __future__ import annotations

from collections.abc import Callable

import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.loader_benchmark import STAGES, LoaderReport, measure_loader


def test_every_stage_is_timed_and_every_image_read(make_source: Callable) -> None:
    source = make_source(12)
    reads: list[int] = []
    read = source.read

    def counted(index: int) -> bytes:
        reads.append(index)
        return read(index)

    source.read = counted
    done: list[int] = []
    report = measure_loader(
        source, image_size=16, num_images=12, batch_size=4, num_workers=0, progress=done.append
    )
    assert tuple(report.stage_us) == STAGES
    assert all(us > 0 for us in (*report.stage_us.values(), report.whole_us, report.images_per_s))
    assert (report.num_images, done[-1]) == (12, 24)
    assert report.image_bytes == sum(map(len, source.images)) / 12
    # In whole batches, stage by stage, and by the loader, whose first batch is not timed.
    assert len(reads) == 12 + 12 + 16


def test_what_takes_most_bounds_it() -> None:
    stages = {"read": 5.0, "decode": 30.0, "transform": 4.0, "collate": 2.0}
    report = LoaderReport(stages, 32.0, 40.0, 25_000.0, 0, 100, 2500.0)
    assert (report.bound_by, report.share_of_bare_decode) == ("decode", 0.8)


def test_a_bad_image_is_named(make_source: Callable) -> None:
    source = make_source(4)
    source.images[2] = b"broken"
    with pytest.raises(DatasetError, match=r"^image2: not a readable image"):
        measure_loader(source, image_size=16, num_images=4, batch_size=4)


@pytest.mark.parametrize(
    ("field", "value"), [("num_images", 0), ("batch_size", 0), ("num_workers", -1)]
)
def test_a_number_out_of_range_is_named(make_source: Callable, field: str, value: int) -> None:
    with pytest.raises(DatasetError, match=f"{field} is {value}; allowed"):
        measure_loader(make_source(4), image_size=16, **{field: value})
