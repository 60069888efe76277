"""Plans of a small network: never worse than what they are compared with, and honest when stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from facetrain.config import OptimConfig
from facetrain.planning.fit import fit, largest
from facetrain.planning.head import head_options
from facetrain.planning.step import EAGER
from memopt.errors import BudgetTooSmallError
from memopt.partition.comparisons import COMPARISONS
from memopt.partition.search import Found
from tests.facetrain.planning.problems import CONFIG, backbone, planner, problem


@pytest.mark.parametrize("share", [1.0, 0.9, 0.7])
def test_never_slower_than_what_it_is_compared_with(share: float) -> None:
    whole = planner(problem())
    found, _, _ = whole.best()
    least = min(front.least().outcome.peak_bytes for _, front in whole._fronts(1))
    budget = int(least + share * (found.outcome.peak_bytes - least))
    tight = planner(problem(memory_bytes=budget))
    best, _, micro_batches = tight.best()
    assert best.outcome.peak_bytes <= budget
    assert micro_batches == 1
    assert all(option.is_executable for option in best.choice)
    rows = tight.compare()
    assert rows.keys() == {*COMPARISONS, EAGER}
    empirical = rows["empirical best"]
    if isinstance(empirical, Found):
        # Simpler ways may stay for a gain below 1 %.
        assert best.outcome.time_us <= 1.01 * empirical.outcome.time_us


def test_cells_that_nothing_else_fits_become_feasible() -> None:
    whole = planner(problem())
    least = min(front.least().outcome.peak_bytes for _, front in whole._fronts(1))
    tight = planner(problem(memory_bytes=least))
    best, _, _ = tight.best()
    assert best.outcome.peak_bytes == least
    assert all(isinstance(row, BudgetTooSmallError) for row in tight.compare().values())


def test_a_budget_below_the_floor_names_the_least_and_what_binds() -> None:
    stuck = planner(problem(memory_bytes=10_000_000))
    with pytest.raises(BudgetTooSmallError) as error:
        stuck.best()
    line = str(error.value)
    assert "\n" not in line
    assert "memory 9.5MiB: the least for 100,000 identities and 8 images a device is" in line
    assert "of which" in line
    again = planner(problem(memory_bytes=error.value.least_bytes))
    assert again.best()[0].outcome.peak_bytes == error.value.least_bytes


def test_micro_batches_only_where_they_are_allowed() -> None:
    whole = planner(problem(num_classes=500, rows=64))
    least = min(front.least().outcome.peak_bytes for _, front in whole._fronts(1))
    smaller = problem(num_classes=500, rows=64, memory_bytes=least - 200_000)
    with pytest.raises(BudgetTooSmallError):
        planner(smaller).best()
    cut, _, micro_batches = planner(replace(smaller, may_change=("micro-batches",))).best()
    assert micro_batches > 1
    assert cut.outcome.peak_bytes <= least - 200_000


def test_micro_batches_that_the_run_has_are_everybodys() -> None:
    """Gradients of the first are there from the start: weights, momentum and gradients rest."""
    config = replace(CONFIG, optim=OptimConfig(micro_batches=2))
    one = planner(problem(num_classes=500, rows=64, config=config))
    empirical = one.compare()["empirical best"]
    assert isinstance(empirical, Found)
    centers = -(-500 // 16) * 128 * 4
    weights = one.backbone.weight_bytes
    assert empirical.outcome.weight_bytes == 3 * weights + 2 * centers
    best, _, micro_batches = one.best()
    assert micro_batches == 2
    assert best.outcome.time_us <= 1.01 * empirical.outcome.time_us


def test_momentum_in_bf16_only_where_it_is_allowed() -> None:
    def momenta(may_change: tuple[str, ...]) -> set[object]:
        one = planner(problem(may_change=may_change))
        options = head_options(one.problem, one.setting(), 1)
        return {o.settings["center_momentum"] for o in options if o.settings}

    assert momenta(()) == {"fp32"}
    assert momenta(("momentum",)) == {"fp32", "bf16"}


def test_one_device_has_nothing_to_share() -> None:
    found, family, _ = planner(problem(num_devices=1, num_classes=1000)).best()
    assert family == "weights on all devices"
    assert found.outcome.inter_bytes == found.outcome.intra_bytes == 0
    assert found.choice[-1].settings["head_ranks"] == 0


def test_adamw_rests_more() -> None:
    sgd = planner(problem())
    adamw = planner(
        problem(config=replace(CONFIG, optim=OptimConfig(optimizer="adamw", momentum=0.9)))
    )
    assert adamw.problem.state_ratio == 2.0
    weights = sgd.backbone.weight_bytes
    more = adamw.best()[0].outcome.weight_bytes - sgd.best()[0].outcome.weight_bytes
    centers = -(-100_000 // 16) * 128 * 4
    assert more == pytest.approx(weights + centers, rel=0.02)


def test_the_largest_number_by_doubling_and_halving() -> None:
    for limit in (1, 2, 3, 99, 100, 1_000_003):
        found = largest(lambda number, limit=limit: number <= limit, 1)
        assert found <= limit
        assert found >= 0.99 * limit - 1
    assert largest(lambda number: False, 1) == 0


@pytest.mark.parametrize("what", ["batch", pytest.param("ids", marks=pytest.mark.slow)])
def test_what_fits_fits_and_a_little_more_does_not(what: str) -> None:
    tight = problem(memory_bytes=200_000_000)
    found = fit(what, tight, backbone())
    changed = found.rows if what == "batch" else found.num_classes
    assert changed > (tight.rows if what == "batch" else tight.num_classes)
    assert planner(found).fits()
    more = int(changed * 1.03) + 1
    beyond = replace(found, rows=more) if what == "batch" else replace(found, num_classes=more)
    assert not planner(beyond).fits()


def test_micro_batches_that_the_run_has_stay_a_choice() -> None:
    """3 of 9 images; no number of our own is larger and cuts them evenly."""
    config = replace(CONFIG, optim=OptimConfig(micro_batches=3))
    one = planner(replace(problem(rows=9), config=config, may_change=("micro-batches",)))
    assert one.best()[2] == 3
