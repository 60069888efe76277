from __future__ import annotations

import numpy as np

from facetrain.config import DataConfig, RunConfig
from facetrain.run import build_order

_LABELS = np.repeat(np.arange(4), 6)


def test_the_order_is_the_one_asked_for() -> None:
    shuffled = build_order(RunConfig(), _LABELS).indices(np.arange(24))
    assert sorted(shuffled.tolist()) == list(range(24))
    for data, size in (
        (DataConfig(order="balanced"), 4),
        (DataConfig(order="balanced", images_in_a_row=3), 3),
    ):
        groups = _LABELS[build_order(RunConfig(data=data), _LABELS).indices(np.arange(24))]
        assert (groups.reshape(-1, size) == groups[::size, None]).all()


def test_the_seed_decides_the_order() -> None:
    orders = [build_order(RunConfig(seed=s), _LABELS).indices(np.arange(24)) for s in (0, 1)]
    assert (orders[0] != orders[1]).any()
