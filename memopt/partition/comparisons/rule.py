"""What a comparison is, and the choice that the simple ones make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from memopt.errors import BudgetTooSmallError, MemoptError
from memopt.partition.chain import Chain, Option
from memopt.partition.search import Found, search


class Comparison(Protocol):
    """Another system's way to choose."""

    def __call__(self, chain: Chain, budget_bytes: int) -> Found:
        """Its choice.

        Raises:
            BudgetTooSmallError: nothing it considers fits; names the least that it could take.
            MemoptError: it has no way to run this chain at all.
        """


def fastest(
    chain: Chain,
    budget_bytes: int,
    *,
    layers: str,
    ways: Sequence[str],
    loss: Sequence[str],
) -> Found:
    """One strategy for all layers, one way to keep activations for all, the loss chosen freely.

    Args:
        layers: strategy of every layer that has it; others are replicated.
        ways: of which one is taken for all layers.
        loss: strategies of the last stage to choose from.
    """
    last = chain.stages[-1]
    if not any(option.strategy in loss for option in last.options):
        raise MemoptError(f"{last.name} cannot be run {' or '.join(loss)} here")
    found: list[Found] = []
    too_small: list[BudgetTooSmallError] = []
    for way in ways:
        wanted: set[int] = set()
        for stage in chain.stages[:-1]:
            own = [o for o in stage.options if o.strategy == layers and o.detail == way]
            own = own or [
                o for o in stage.options if o.strategy == "replicated" and o.detail == way
            ]
            wanted.update(map(id, own))
        wanted.update(id(option) for option in last.options if option.strategy in loss)
        try:
            found.append(search(chain, partial(_is_one_of, wanted)).best(budget_bytes))
        except BudgetTooSmallError as error:
            too_small.append(error)
    if not found:
        raise min(too_small, key=lambda error: error.least_bytes)
    return min(found, key=lambda one: one.outcome.time_us)


def _is_one_of(wanted: set[int], option: Option) -> bool:
    return id(option) in wanted
