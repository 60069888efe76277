"""A training step as a chain of stages, each with the ways it can be partitioned and kept.

    forward   stage 1 ... stage L, and what each keeps for its backward pass piles up
    backward  stage L ... stage 1, and gradients pile up while what was kept goes

The last stage is the loss: it works while everything that is kept exists. With r resting bytes, k
kept from forward to backward, w worked with beside what earlier stages keep, g gradients kept to
the end of the step, the most memory of a chain is, over all stages i,

    peak = sum(r) + max over i of ( k_1 + ... + k_(i-1) + max(w_i, k_i) + g_(i+1) + ... + g_L )

which builds up from the last stage to the first, one stage at a time:

    need  <- r + max(w + later, k + need)        later <- later + r + g

Handing an activation on in another layout takes c bytes beside k: then w is at least k + c.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from memopt.partition.collectives import Traffic


@dataclass(frozen=True)
class Option:
    """One way to partition a stage and to keep or remake what its backward pass needs.

    Attributes:
        strategy: name of the way its tensors are partitioned.
        detail: what else tells it from other options of the strategy, for tables.
        time_us: everything it adds to a step: operators, recomputation, traffic that nothing hides.
        resting_bytes: weights and optimizer state on a device.
        kept_bytes: kept from its forward pass to its backward pass, its input included.
        work_bytes: the most alive in its own passes, beside what earlier stages keep.
        gradient_bytes: of weights, kept from its backward pass to the end of the step.
        traffic: its collectives in one step.
        takes, gives: layouts of its input and output.
        is_executable: whether training can run it today, not only the model of it.
        span: number of stages it covers, from its own on.
        settings: what a trainer needs to run it.
    """

    strategy: str
    detail: str
    time_us: float
    resting_bytes: int
    kept_bytes: int
    work_bytes: int
    gradient_bytes: int
    traffic: tuple[Traffic, ...] = ()
    takes: str = "batch"
    gives: str = "batch"
    is_executable: bool = True
    span: int = 1
    settings: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion:
    """What it takes to hand an activation on in another layout.

    Attributes:
        time_us: of forward and backward.
        work_bytes: alive while it happens.
        traffic: of forward and backward.
    """

    time_us: float = 0.0
    work_bytes: int = 0
    traffic: tuple[Traffic, ...] = ()


Convert = Callable[[int, str, str], Conversion | None]
"""(number of the stage that gives, its layout, layout taken) -> cost; None where impossible."""


@dataclass(frozen=True)
class Stage:
    """A link of the chain and its options."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Chain:
    """All stages of a step, the loss last.

    Attributes:
        constant_bytes: there all along, whatever is chosen: the batch, buffers, a reserve.
        constant_us: time that no choice changes.
    """

    stages: tuple[Stage, ...]
    convert: Convert
    constant_bytes: int = 0
    constant_us: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What a choice of options costs.

    Attributes:
        time_us: of a step.
        peak_bytes: the most memory on a device.
        at: number of the stage that works at the peak, the first of an option's.
        weight_bytes, gradient_bytes, activation_bytes, work_bytes: parts of the peak, with
            `Chain.constant_bytes` its whole.
        intra_bytes, inter_bytes: sent in a step, by a device inside its node and by a node.
    """

    time_us: float
    peak_bytes: int
    at: int
    weight_bytes: int
    gradient_bytes: int
    activation_bytes: int
    work_bytes: int
    intra_bytes: float
    inter_bytes: float


def outcome(chain: Chain, choice: Sequence[Option]) -> Outcome:
    """Cost of options that cover all stages in order; what a search must agree with.

    Raises:
        ValueError: neighbours whose layouts cannot be converted.
    """
    conversions = _conversions(chain, choice)
    last = len(choice) - 1
    starts = [0, *itertools.accumulate(option.span for option in choice)]
    # From the loss on: before it there is no moment that backward does not exceed.
    backward = memory_over_step(chain, choice)[last:]
    peak = int(backward.sum(axis=1).argmax())
    weights, gradients, activations, work = (int(part) for part in backward[peak])
    traffic = [item for option in choice for item in option.traffic]
    traffic += [item for conversion in conversions for item in conversion.traffic]
    return Outcome(
        time_us=chain.constant_us
        + sum(option.time_us for option in choice)
        + sum(conversion.time_us for conversion in conversions),
        peak_bytes=chain.constant_bytes + weights + gradients + activations + work,
        at=starts[last - peak],
        weight_bytes=weights,
        gradient_bytes=gradients,
        activation_bytes=activations,
        work_bytes=work,
        intra_bytes=sum(item.intra_bytes for item in traffic),
        inter_bytes=sum(item.inter_bytes for item in traffic),
    )


def memory_over_step(chain: Chain, choice: Sequence[Option]) -> np.ndarray:
    """Bytes while each of L options works, forward, the loss, and backward, [2 L - 1, 4].

    Columns: weights and optimizer state, gradients, what earlier stages keep, what this one takes.
    """
    conversions = [*_conversions(chain, choice), Conversion()]
    resting = sum(option.resting_bytes for option in choice)
    rows, kept = [], 0
    for option, conversion in zip(choice[:-1], conversions, strict=False):
        rows.append((resting, 0, kept, option.kept_bytes + conversion.work_bytes))
        kept += option.kept_bytes
    gradients = 0
    for number in range(len(choice) - 1, -1, -1):
        option, conversion = choice[number], conversions[number]
        if number < len(choice) - 1:
            kept -= option.kept_bytes
        work = max(option.work_bytes, option.kept_bytes + conversion.work_bytes)
        rows.append((resting, gradients, kept, work))
        gradients += option.gradient_bytes
    return np.array(rows, dtype=np.int64)


def _conversions(chain: Chain, choice: Sequence[Option]) -> list[Conversion]:
    found, number = [], -1
    for first, second in itertools.pairwise(choice):
        number += first.span
        conversion = chain.convert(number, first.gives, second.takes)
        if conversion is None:
            raise ValueError(
                f"{chain.stages[number].name} gives {first.gives}, which cannot become "
                f"{second.takes} for {chain.stages[number + 1].name}"
            )
        found.append(conversion)
    return found
