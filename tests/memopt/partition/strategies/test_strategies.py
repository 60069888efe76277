"""Bytes and traffic of each strategy, by hand, on a layer of round numbers."""

from __future__ import annotations

import pytest

from memopt.partition.cluster import CLUSTERS
from memopt.partition.collectives import Group
from memopt.partition.layers import Layer, Way
from memopt.partition.strategies import STRATEGIES, Setting, convert

W = 4_000_000
KEPT, ALL = Way("all kept", 900, 2000, 0.0), Way("less", 300, 1500, 70.0)
LAYER = Layer("block", W, 500, 250, 1000.0, 2000.0, (KEPT, ALL))
SETTING = Setting(CLUSTERS["v100-32g"].resized(16), state_ratio=1.0)
COMPUTE_US = 3000.0


def test_every_strategy_is_here() -> None:
    tested = {"replicated", "zero1", "zero2", "zero3", "tensor", "row", "column"}
    assert set(STRATEGIES) == tested


def test_replicated() -> None:
    option = STRATEGIES["replicated"](LAYER, ALL, SETTING)
    assert option is not None
    assert (option.resting_bytes, option.gradient_bytes) == (2 * W, W)
    assert (option.kept_bytes, option.work_bytes) == (500 + 300, 500 + 1500)
    (sums,) = option.traffic
    # A ring of all 16 sends twice 15/16 of the gradients; here 8 a node, so a node's share is
    # between that and the hierarchy's (each node half of it all, twice).
    assert W <= sums.inter_bytes <= 2 * W * 15 / 16
    expected = COMPUTE_US + 70 + sums.us + SETTING.optimizer_us(W)
    assert option.time_us == pytest.approx(expected)


def test_gradients_travel_in_full_buckets() -> None:
    """A small layer pays its share of a bucket's latency, not the whole."""
    small = SETTING.summed(W)
    bucket = SETTING.collectives.all_reduce(25 * 2**20, SETTING.everyone)
    assert small.us == pytest.approx(bucket.us * W / (25 * 2**20))
    assert small.us < SETTING.collectives.all_reduce(W, SETTING.everyone).us


def test_hidden_traffic_takes_no_time() -> None:
    hidden = Setting(SETTING.cluster, 1.0, hidden_share=1.0)
    option = STRATEGIES["replicated"](LAYER, KEPT, hidden)
    assert option is not None
    assert option.time_us == pytest.approx(COMPUTE_US + hidden.optimizer_us(W))


def test_zero_stages_trade_bytes_for_traffic() -> None:
    plain, one, two, three = (
        STRATEGIES[name](LAYER, KEPT, SETTING) for name in ("replicated", "zero1", "zero2", "zero3")
    )
    assert plain is not None and one is not None and two is not None and three is not None  # noqa: PT018
    assert one.resting_bytes == W + W // 16
    assert one.gradient_bytes == W
    assert two.resting_bytes == three.resting_bytes == 2 * W // 16
    assert two.gradient_bytes == three.gradient_bytes == W // 16
    # Gathered weights are kept for backward, or gathered again.
    assert two.kept_bytes == three.kept_bytes + W
    assert two.work_bytes == three.work_bytes
    assert [len(option.traffic) for option in (plain, one, two, three)] == [1, 2, 2, 3]
    assert three.time_us - two.time_us == pytest.approx(three.traffic[0].us)


def test_a_layer_without_weights_sends_nothing() -> None:
    empty = Layer("pool", 0, 500, 250, 10.0, 10.0, (KEPT,))
    for name in ("replicated", "zero1", "zero2", "zero3"):
        option = STRATEGIES[name](empty, KEPT, SETTING)
        assert option is not None
        assert sum(item.us for item in option.traffic) == 0
        assert option.resting_bytes == option.gradient_bytes == 0
    for name in ("tensor", "row", "column"):
        assert STRATEGIES[name](empty, KEPT, SETTING) is None


def test_tensor_parallelism_cuts_weights_and_multiplies_inputs() -> None:
    option = STRATEGIES["tensor"](LAYER, KEPT, SETTING)
    assert option is not None
    assert option.resting_bytes == 2 * W // 8
    assert option.kept_bytes == 8 * 500 + 900
    assert (option.takes, option.gives, option.is_executable) == ("node", "node", False)
    node = Group.of(SETTING.cluster, 8)
    outputs = SETTING.collectives.all_reduce(8 * 250, node)
    inputs = SETTING.collectives.all_reduce(8 * 500, node)
    assert option.traffic[1:] == (outputs, inputs)
    assert all(item.inter_bytes == 0 for item in option.traffic[1:])


def test_rows_and_columns_fit_each_other() -> None:
    column, row = (STRATEGIES[name](LAYER, KEPT, SETTING) for name in ("column", "row"))
    assert column is not None
    assert row is not None
    assert column.gives == row.takes == "features"
    assert convert(250, column.gives, row.takes, SETTING).time_us == 0  # type: ignore[union-attr]
    assert (column.takes, row.gives) == ("node", "batch")


def test_one_device_a_node_has_no_tensor_parallelism() -> None:
    single = Setting(CLUSTERS["v100-32g"].resized(1))
    for name in ("tensor", "row", "column"):
        assert STRATEGIES[name](LAYER, KEPT, single) is None


def test_conversions_between_layouts() -> None:
    node = Group.of(SETTING.cluster, 8)
    gathered = SETTING.collectives.all_gather(8 * 250, node)
    to_node = convert(250, "batch", "node", SETTING)
    back = convert(250, "node", "batch", SETTING)
    assert to_node is not None
    assert back is not None
    # One way forward is gathered and backward cut, the other way the reverse.
    assert to_node == back
    assert (to_node.time_us, to_node.work_bytes) == (gathered.us, 2000)
    exchange = convert(250, "batch", "features", SETTING)
    assert exchange is not None
    assert exchange.time_us == 2 * SETTING.collectives.all_to_all(2000, node).us
