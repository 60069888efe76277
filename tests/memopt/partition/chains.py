"""Small made-up chains for tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from memopt.partition.chain import Chain, Conversion, Option, Stage
from memopt.partition.collectives import Traffic

LAYOUTS = ("batch", "node")


def random_option(choose: random.Random, *, last: bool, span: int = 1) -> Option:
    kept = 0 if last else choose.randrange(20)
    return Option(
        "made up",
        "",
        float(choose.randrange(1, 50)),
        resting_bytes=choose.randrange(10),
        kept_bytes=kept,
        work_bytes=kept + choose.randrange(20),
        gradient_bytes=choose.randrange(10),
        traffic=(Traffic(1.0, choose.randrange(9), choose.randrange(9), "ring"),),
        takes=choose.choice(LAYOUTS),
        gives=choose.choice(LAYOUTS),
        span=span,
    )


def random_chain(seed: int, *, num_stages: int = 4, num_options: int = 3) -> Chain:
    """Options of both layouts, one of two stages at each but the last; conversions cost."""
    choose = random.Random(seed)
    stages = []
    for number in range(num_stages):
        last = number == num_stages - 1
        options = [random_option(choose, last=last) for _ in range(num_options)]
        if number < num_stages - 2:
            options.append(random_option(choose, last=False, span=2))
        stages.append(Stage(f"stage {number}", tuple(options)))
    costs = {
        key: Conversion(float(choose.randrange(9)), choose.randrange(15), ())
        for key in itertools.product(range(num_stages), LAYOUTS, LAYOUTS)
    }

    def convert(number: int, gives: str, takes: str) -> Conversion | None:
        if seed % 3 == 0 and (number, gives, takes) == (1, "node", "batch"):
            return None
        return Conversion() if gives == takes else costs[number, gives, takes]

    return Chain(tuple(stages), convert, constant_bytes=7, constant_us=3.0)


def all_choices(chain: Chain, number: int = 0) -> Iterator[tuple[Option, ...]]:
    """Every way to cover the stages from `number` on."""
    if number == len(chain.stages):
        yield ()
        return
    for option in chain.stages[number].options:
        for rest in all_choices(chain, number + option.span):
            yield (option, *rest)
