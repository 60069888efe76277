"""The search against every choice there is."""

from __future__ import annotations

import math

import pytest

from memopt.errors import BudgetTooSmallError
from memopt.partition.chain import Chain, Conversion, Option, Outcome, Stage, outcome
from memopt.partition.search import search
from tests.memopt.partition.chains import all_choices, random_chain


def every_outcome(chain: Chain) -> list[Outcome]:
    found = []
    for choice in all_choices(chain):
        try:
            found.append(outcome(chain, choice))
        except ValueError:
            continue
    return found


@pytest.mark.parametrize("seed", range(25))
def test_equals_brute_force_at_every_budget(seed: int) -> None:
    chain = random_chain(seed)
    known = every_outcome(chain)
    front = search(chain)
    least = min(cost.peak_bytes for cost in known)
    assert front.least().outcome.peak_bytes == least
    for budget in range(least, max(cost.peak_bytes for cost in known) + 1):
        best_us = min(cost.time_us for cost in known if cost.peak_bytes <= budget)
        found = front.best(budget)
        assert found.outcome.peak_bytes <= budget
        assert found.outcome.time_us == best_us
    with pytest.raises(BudgetTooSmallError) as error:
        front.best(least - 1)
    assert error.value.least_bytes == least


@pytest.mark.parametrize("seed", range(5))
def test_trades_are_the_undominated_choices(seed: int) -> None:
    chain = random_chain(seed)
    known = {(cost.peak_bytes, cost.time_us) for cost in every_outcome(chain)}
    wanted = sorted(
        one
        for one in known
        if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in known)
    )
    assert sorted(search(chain).trades()) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_a_coarse_grid_stays_within_the_budget_and_near_the_best(seed: int) -> None:
    chain = random_chain(seed, num_stages=6, num_options=4)
    exact, coarse = search(chain), search(chain, resolution=8)
    least = exact.least().outcome.peak_bytes
    assert coarse.least().outcome.peak_bytes >= least
    for budget in range(coarse.least().outcome.peak_bytes, least + 200, 10):
        best_us, found = exact.best(budget).outcome.time_us, coarse.best(budget).outcome
        assert found.peak_bytes <= budget
        assert best_us <= found.time_us


def test_only_allowed_options_are_taken() -> None:
    fast = Option("fast", "", 1.0, 0, 0, 10, 0)
    slow = Option("slow", "", 9.0, 0, 0, 10, 0)
    chain = Chain((Stage("loss", (fast, slow)),), lambda *_: Conversion())
    assert search(chain).best(10).choice == (fast,)
    assert search(chain, lambda o: o.strategy == "slow").best(10).choice == (slow,)
    with pytest.raises(ValueError, match="loss: no allowed option"):
        search(chain, lambda option: False)


def test_a_hundred_layers_take_no_time() -> None:
    """As many as iresnet200 has, each with trades; the front stays exact in its bytes."""
    ways = tuple(Option("x", "", 10.0 + 3.0**k, 5, 70 - 15 * k, 75, 3) for k in range(5))
    loss = Stage(
        "loss", tuple(Option("l", "", 50.0 + 9.0 * k, 9, 0, 900 >> k, 0) for k in range(8))
    )
    chain = Chain((*[Stage("block", ways)] * 100, loss), lambda *_: Conversion())
    front = search(chain)
    times = [us for _, us in front.trades()]
    peaks = [peak for peak, _ in front.trades()]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)
    middle = front.best((peaks[0] + peaks[-1]) // 2)
    assert middle.outcome.peak_bytes <= (peaks[0] + peaks[-1]) // 2
    assert math.isclose(
        middle.outcome.time_us, sum(option.time_us for option in middle.choice), rel_tol=1e-12
    )
