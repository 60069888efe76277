"""FlexFlow: a random walk over partitions of each operator, priced by a simulator.

Nothing is recomputed. From data parallelism on, one stage's option is replaced at a time, and a
slower choice taken with a probability that falls with its time (Metropolis-Hastings). A choice that
does not fit counts as slower, the more the more it is over.
Jia, Zaharia, Aiken: "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019.
"""

from __future__ import annotations

import math
import random

from memopt.errors import BudgetTooSmallError
from memopt.partition.chain import Chain, Option, Outcome, outcome
from memopt.partition.layers import ALL_KEPT
from memopt.partition.search import Found
from memopt.units import format_bytes

_PROPOSALS = 3_000
_COLDNESS = 50.0
_SEED = 0


def flexflow(chain: Chain, budget_bytes: int) -> Found:
    """The fastest choice that fits, of those met on the walk."""
    walk = random.Random(_SEED)
    options = [
        [o for o in stage.options if o.detail == ALL_KEPT or stage is chain.stages[-1]]
        for stage in chain.stages
    ]
    # Where the loss cannot be replicated, the walk starts with it cut.
    choice = [next((o for o in own if o.strategy == "replicated"), own[0]) for own in options]
    current = outcome(chain, choice)
    start_us = current.time_us
    best: tuple[Outcome, list[Option]] | None = None
    least = current.peak_bytes

    def price(cost: Outcome) -> float:
        return cost.time_us * max(1.0, cost.peak_bytes / budget_bytes) ** 4

    for _ in range(_PROPOSALS):
        if current.peak_bytes <= budget_bytes and (
            best is None or current.time_us < best[0].time_us
        ):
            best = current, list(choice)
        number = walk.randrange(len(options))
        proposed = list(choice)
        proposed[number] = walk.choice(options[number])
        cost = outcome(chain, proposed)
        least = min(least, cost.peak_bytes)
        slower = (price(cost) - price(current)) / start_us
        if slower <= 0 or walk.random() < math.exp(-_COLDNESS * slower):
            choice, current = proposed, cost
    if best is None:
        raise BudgetTooSmallError(
            f"budget {format_bytes(budget_bytes)}: the least met on the walk is "
            f"{format_bytes(least, round_up=True)}",
            least,
        )
    return Found(tuple(best[1]), best[0])
