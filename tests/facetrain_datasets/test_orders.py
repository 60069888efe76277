from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.orders import ORDERS, BalancedOrder, ShuffledOrder

_LABELS = np.repeat(np.arange(5), [1, 2, 3, 7, 12])


def _groups(order: BalancedOrder, start: int, num_groups: int) -> np.ndarray:
    """Images [num_groups, K] of consecutive groups."""
    size = order.images_per_identity
    return order.indices(np.arange(start * size, (start + num_groups) * size)).reshape(-1, size)


def test_shuffled_epochs_are_permutations() -> None:
    order = ShuffledOrder(37, seed=4)
    epochs = order.indices(np.arange(3 * 37)).reshape(3, 37)
    assert (np.sort(epochs, axis=1) == np.arange(37)).all()
    assert (epochs[0] != epochs[1]).any()


@pytest.mark.parametrize("images_per_identity", [1, 3, 4])
def test_every_group_is_of_one_identity_and_every_round_has_each_once(
    images_per_identity: int,
) -> None:
    order = BalancedOrder(_LABELS, seed=1, images_per_identity=images_per_identity)
    labels = _LABELS[_groups(order, 0, 6 * 5)]
    assert (labels == labels[:, :1]).all()
    rounds = labels[:, 0].reshape(6, 5)
    assert (np.sort(rounds, axis=1) == np.arange(5)).all()
    assert len({tuple(row) for row in rounds.tolist()}) > 1


def test_images_of_an_identity_come_once_each_before_any_again() -> None:
    order = BalancedOrder(_LABELS, seed=2, images_per_identity=4)
    images = _groups(order, 0, 5 * 21)
    for label, count in enumerate(np.bincount(_LABELS)):
        drawn = images[_LABELS[images[:, 0]] == label].ravel()
        assert len(drawn) == 84
        full = drawn[: 84 // count * count].reshape(-1, count)
        assert (np.sort(full, axis=1) == np.flatnonzero(label == _LABELS)).all()
    # The largest identity has room for another order in each of its seven turns.
    turns = images[_LABELS[images[:, 0]] == 4].reshape(-1, 12)
    assert len({tuple(turn) for turn in turns.tolist()}) == 7


def test_labels_in_any_order_and_classes_without_images() -> None:
    shuffled = np.random.default_rng(0).permutation(_LABELS * 3)
    order = BalancedOrder(shuffled, seed=3, images_per_identity=2)
    images = _groups(order, 0, 60)
    assert (shuffled[images] == shuffled[images[:, :1]]).all()
    counts = Counter(shuffled[images[:, 0]].tolist())
    assert counts == dict.fromkeys([0, 3, 6, 9, 12], 12)
    assert set(images.ravel().tolist()) == set(range(25))


def test_any_part_of_the_stream_can_be_asked_for_alone() -> None:
    order = BalancedOrder(_LABELS, seed=1, images_per_identity=4)
    positions = np.random.default_rng(0).permutation(400)
    np.testing.assert_array_equal(
        order.indices(positions), order.indices(np.arange(400))[positions]
    )


def test_seeds_give_other_streams() -> None:
    first, second = (BalancedOrder(_LABELS, seed=s).indices(np.arange(60)) for s in (0, 1))
    assert (first != second).any()


def test_a_million_identities_take_no_time_per_identity() -> None:
    labels = np.repeat(np.arange(1_000_000), 2)
    order = ORDERS["balanced"](labels, seed=0, images_per_identity=2)
    images = order.indices(np.arange(10**12, 10**12 + 64))
    assert (labels[images].reshape(32, 2) == labels[images][::2, None]).all()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (_LABELS, {"seed": -1}, "seed is -1; allowed: 0 or more"),
        (_LABELS, {"seed": 0, "images_per_identity": 0}, "images_per_identity is 0; allowed"),
        (_LABELS[:0], {"seed": 0}, "num_samples is 0; allowed: 1 or more"),
    ],
)
def test_value_out_of_range_is_named(labels: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        BalancedOrder(labels, **options)
