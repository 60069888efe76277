"""What a choice costs, by hand and by a step played through allocation by allocation."""

from __future__ import annotations

import pytest

from memopt.partition.chain import Chain, Conversion, Option, Stage, memory_over_step, outcome
from memopt.partition.collectives import Traffic
from tests.memopt.partition.chains import all_choices, random_chain


def option(**bytes_of: int) -> Option:
    given = {"resting_bytes": 0, "kept_bytes": 0, "work_bytes": 0, "gradient_bytes": 0, **bytes_of}
    return Option("made up", "", 10.0, traffic=(Traffic(1.0, 3.0, 5.0, "ring"),), **given)


def free(number: int, gives: str, takes: str) -> Conversion:
    return Conversion()


def test_two_layers_and_a_loss_by_hand() -> None:
    first = option(resting_bytes=100, kept_bytes=10, work_bytes=25, gradient_bytes=4)
    second = option(resting_bytes=200, kept_bytes=20, work_bytes=30, gradient_bytes=6)
    loss = option(resting_bytes=300, work_bytes=50, gradient_bytes=8)
    stages = tuple(Stage(name, (o,)) for name, o in (("a", first), ("b", second), ("l", loss)))
    chain = Chain(stages, free, constant_bytes=1000, constant_us=5.0)
    rows = memory_over_step(chain, (first, second, loss)).tolist()
    # forward a, b; the loss; backward b, a
    assert [row[0] for row in rows] == [600] * 5
    assert [row[1:] for row in rows] == [
        [0, 0, 10], [0, 10, 20], [0, 30, 50], [8, 10, 30], [14, 0, 25]
    ]  # fmt: skip
    cost = outcome(chain, (first, second, loss))
    assert cost.peak_bytes == 1000 + 600 + 30 + 50
    assert (cost.weight_bytes, cost.gradient_bytes) == (600, 0)
    assert (cost.activation_bytes, cost.work_bytes) == (30, 50)
    assert cost.at == 2
    assert cost.time_us == 35.0
    assert (cost.intra_bytes, cost.inter_bytes) == (9.0, 15.0)


def test_the_peak_can_be_in_backward_where_gradients_pile_up() -> None:
    first = option(kept_bytes=10, work_bytes=60)
    second = option(kept_bytes=5, work_bytes=10, gradient_bytes=40)
    loss = option(work_bytes=20, gradient_bytes=30)
    chain = Chain(
        tuple(Stage(n, (o,)) for n, o in (("a", first), ("b", second), ("l", loss))), free
    )
    cost = outcome(chain, (first, second, loss))
    assert (cost.peak_bytes, cost.at) == (70 + 60, 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_peak_equals_the_recurrence(seed: int) -> None:
    """Built up from the last stage, as in the module's text."""
    chain = random_chain(seed)
    checked = 0
    for choice in all_choices(chain):
        try:
            cost = outcome(chain, choice)
        except ValueError:
            continue
        need, later, number = 0, 0, len(chain.stages)
        after = None
        for one in reversed(choice):
            number -= one.span
            conversion = Conversion()
            if after is not None:
                found = chain.convert(number + one.span - 1, one.gives, after.takes)
                assert found is not None
                conversion = found
            work = max(one.work_bytes, one.kept_bytes + conversion.work_bytes)
            need = one.resting_bytes + max(work + later, one.kept_bytes + need)
            later += one.resting_bytes + one.gradient_bytes
            after = one
        assert cost.peak_bytes == need + chain.constant_bytes
        checked += 1
    assert checked > 30


def test_layouts_that_cannot_be_converted_are_named() -> None:
    one = Option("x", "", 1.0, 0, 0, 0, 0, gives="node")
    chain = Chain(
        (Stage("block", (one,)), Stage("loss", (option(),))), lambda number, gives, takes: None
    )
    with pytest.raises(ValueError, match="block gives node, which cannot become batch for loss"):
        outcome(chain, (one, chain.stages[1].options[0]))
