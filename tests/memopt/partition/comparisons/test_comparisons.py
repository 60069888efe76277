"""What other systems would choose, and that it is theirs to choose."""

from __future__ import annotations

import pytest

from memopt.errors import BudgetTooSmallError
from memopt.partition.chain import Chain, Conversion, Option, Stage
from memopt.partition.cluster import CLUSTERS
from memopt.partition.comparisons import COMPARISONS
from memopt.partition.layers import ALL_KEPT, CHECKPOINT, Layer, Way
from memopt.partition.search import search
from memopt.partition.strategies import STRATEGIES, Setting, convert

MEBI = 2**20
WAYS = (
    Way(ALL_KEPT, 40 * MEBI, 60 * MEBI, 0.0),
    Way("half kept", 20 * MEBI, 60 * MEBI, 100.0),
    Way(CHECKPOINT, 0, 60 * MEBI, 1000.0),
)
LAYER = Layer("block", 4 * MEBI, 10 * MEBI, 10 * MEBI, 1000.0, 2000.0, WAYS)
SETTING = Setting(CLUSTERS["v100-32g"].resized(16))
NUM_LAYERS = 6


def head(strategy: str, resting: int, work: int, time_us: float) -> Option:
    return Option(strategy, "", time_us, resting * MEBI, 0, work * MEBI, 0)


LOSSES = (
    head("replicated", 800, 100, 5000.0),
    head("gathered", 50, 900, 9000.0),
    head("node", 100, 60, 3000.0),
    head("sharded", 50, 100, 2000.0),
    head("sharded", 50, 30, 2500.0),
)


@pytest.fixture(scope="module")
def chain() -> Chain:
    options = tuple(
        option
        for strategy in STRATEGIES.values()
        for way in WAYS
        if (option := strategy(LAYER, way, SETTING)) is not None
    )

    def conversion(number: int, gives: str, takes: str) -> Conversion | None:
        return convert(LAYER.output_bytes, gives, takes, SETTING)

    return Chain((*[Stage("block", options)] * NUM_LAYERS, Stage("loss", LOSSES)), conversion)


PLENTY = 4096 * MEBI


@pytest.mark.parametrize(
    ("name", "layers", "ways", "loss"),
    [
        ("data parallel", {"replicated"}, {ALL_KEPT}, "replicated"),
        ("ZeRO-3", {"zero3"}, {ALL_KEPT}, "gathered"),
        ("GShard-like", {"replicated"}, {ALL_KEPT}, "sharded"),
        ("Megatron-like", {"tensor"}, {ALL_KEPT}, "node"),
        ("empirical best", {"replicated"}, {ALL_KEPT}, "sharded"),
    ],
)
def test_fixed_policies(
    chain: Chain, name: str, layers: set[str], ways: set[str], loss: str
) -> None:
    found = COMPARISONS[name](chain, PLENTY)
    assert {option.strategy for option in found.choice[:-1]} == layers
    assert {option.detail for option in found.choice[:-1]} == ways
    assert found.choice[-1].strategy == loss


def test_the_empirical_best_checkpoints_all_or_nothing(chain: Chain) -> None:
    plain = COMPARISONS["empirical best"](chain, PLENTY)
    tight = COMPARISONS["empirical best"](chain, plain.outcome.peak_bytes - 80 * MEBI)
    assert {option.detail for option in tight.choice[:-1]} == {CHECKPOINT}
    recomputed_us = NUM_LAYERS * 1000.0
    assert tight.outcome.time_us == pytest.approx(plain.outcome.time_us + recomputed_us)
    # The way through the logits is free to all: a leaner one may save the checkpoints.
    leaner = COMPARISONS["empirical best"](chain, plain.outcome.peak_bytes - 60 * MEBI)
    assert {option.detail for option in leaner.choice[:-1]} == {ALL_KEPT}
    # And GShard's annotation has no other answer.
    with pytest.raises(BudgetTooSmallError):
        COMPARISONS["GShard-like"](chain, plain.outcome.peak_bytes - 80 * MEBI)


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_the_search_is_never_slower(chain: Chain, name: str) -> None:
    front = search(chain)
    for budget in (PLENTY, 700 * MEBI, 500 * MEBI, 400 * MEBI, 300 * MEBI):
        try:
            theirs = COMPARISONS[name](chain, budget)
        except BudgetTooSmallError:
            continue
        assert theirs.outcome.peak_bytes <= budget
        assert front.best(budget).outcome.time_us <= theirs.outcome.time_us + 1e-6


def test_a_walk_repeats_and_improves_on_its_start(chain: Chain) -> None:
    first, again = (COMPARISONS["FlexFlow-like"](chain, PLENTY) for _ in range(2))
    assert first.choice == again.choice
    start = COMPARISONS["data parallel"](chain, PLENTY)
    assert first.outcome.time_us < start.outcome.time_us


@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_what_does_not_fit_names_the_least(chain: Chain, name: str) -> None:
    with pytest.raises(BudgetTooSmallError) as error:
        COMPARISONS[name](chain, MEBI)
    assert error.value.least_bytes > MEBI
