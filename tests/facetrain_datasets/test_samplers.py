from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.orders import ShuffledOrder
from facetrain_datasets.samplers import StreamSampler

Key = tuple[int, int]


def _sampler(**changes: Any) -> StreamSampler:
    arguments: dict[str, Any] = {
        "global_batch_size": 10,
        "num_steps": 12,
        "rank": 0,
        "world_size": 1,
    }
    order = ShuffledOrder(changes.pop("num_samples", 37), changes.pop("seed", 4))
    return StreamSampler(order, **{**arguments, **changes})


def _union(world_size: int, **changes: Any) -> list[list[Key]]:
    """Per micro-batch, what all ranks get, in rank order."""
    ranks = [list(_sampler(world_size=world_size, rank=r, **changes)) for r in range(world_size)]
    return [[key for part in parts for key in part] for parts in zip(*ranks, strict=True)]


def test_positions_run_without_gap_and_every_epoch_is_complete() -> None:
    keys = [key for batch in _union(1, num_steps=37) for key in batch]
    assert [position for position, _ in keys] == list(range(370))
    for epoch in range(10):
        images = [image for _, image in keys[epoch * 37 : (epoch + 1) * 37]]
        assert sorted(images) == list(range(37))
    orders = {tuple(image for _, image in keys[e * 37 : (e + 1) * 37]) for e in range(10)}
    assert len(orders) == 10


@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(1, 50),
    world_size=st.integers(1, 4),
    micro_batches=st.integers(1, 3),
    extra=st.integers(0, 9),
    start_step=st.integers(0, 5),
)
def test_union_depends_on_nothing_but_the_step(
    num_samples: int, world_size: int, micro_batches: int, extra: int, start_step: int
) -> None:
    shared = {
        "num_samples": num_samples,
        "global_batch_size": world_size * micro_batches + extra,
        "num_steps": 5,
        "micro_batches": micro_batches,
    }
    whole = _union(1, **shared)
    resumed = _union(world_size, **shared, start_step=start_step)
    assert resumed == whole[start_step * micro_batches :]


def test_uneven_splits_differ_by_at_most_one_and_none_is_empty() -> None:
    for micro_batches in (1, 2, 3):
        sizes = {
            len(batch)
            for rank in range(3)
            for batch in _sampler(rank=rank, world_size=3, micro_batches=micro_batches)
        }
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_micro_batches_of_a_step_make_up_the_big_batch() -> None:
    big = _union(2)
    small = _union(2, micro_batches=3)
    for step, batch in enumerate(big):
        first, second, third = small[3 * step : 3 * step + 3]
        assert first + second + third == batch


def test_batch_larger_than_the_data_set_spans_epochs() -> None:
    (batch,) = _union(1, num_samples=3, global_batch_size=9, num_steps=1)
    images = [image for _, image in batch]
    assert [sorted(images[i : i + 3]) for i in (0, 3, 6)] == [[0, 1, 2]] * 3


def test_length_counts_the_micro_batches_left() -> None:
    sampler = _sampler(micro_batches=2, start_step=5)
    assert len(sampler) == len(list(sampler)) == 14


def test_seeds_give_other_orders() -> None:
    assert _union(1, seed=1) != _union(1, seed=2)


def test_indices_are_python_integers_and_cover_hundreds_of_millions() -> None:
    sampler = _sampler(num_samples=400_000_000, num_steps=1)
    (batch,) = sampler
    assert all(type(value) is int for key in batch for value in key)
    assert np.std([image for _, image in batch]) > 1e7


def test_more_ranks_than_rows_is_refused_up_front() -> None:
    with pytest.raises(DatasetError, match=r"global_batch_size is 10.*allowed: 12 or more"):
        _sampler(world_size=6, micro_batches=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_samples", 0),
        ("num_steps", -1),
        ("world_size", 0),
        ("rank", 1),
        ("micro_batches", 0),
        ("seed", -1),
        ("start_step", 13),
    ],
)
def test_value_out_of_range_is_named(field: str, value: int) -> None:
    with pytest.raises(DatasetError, match=f"{field} is {value}; allowed"):
        _sampler(**{field: value})
