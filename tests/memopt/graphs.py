"""Small graphs for tests of planning: random ones, and chains."""

from __future__ import annotations

import random

from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value


def chain(length: int, size_bytes: int = 10, cost_us: float = 1.0) -> OpGraph:
    """A network of `length` operators and its backward pass, which reads them in reverse."""
    storages = [Storage(1, Role.RESTING), *[Storage(size_bytes)] * length]
    operators = [Operator(f"f{n}", (n,), (n + 1,), cost_us) for n in range(length)]
    last_use = [2 * length] * (length + 1)
    gradient = None
    for n in reversed(range(1, length + 1)):
        storages.append(Storage(size_bytes))
        reads = (n,) if gradient is None else (n, gradient)
        made = len(storages) - 1
        last_use[n] = len(operators)
        if gradient is not None:
            last_use[gradient] = len(operators)
        last_use.append(2 * length)
        operators.append(Operator(f"b{n}", reads, (made,), cost_us, Replay.NEVER, backward=True))
        gradient = made
    values = tuple(Value(number) for number in range(len(storages)))
    return OpGraph(tuple(storages), values, tuple(operators), tuple(last_use))


def random_graph(
    seed: int, num_operators: int = 12, in_place: float = 0.15, controlled: bool = False
) -> OpGraph:
    """Operators that read some current values and make one or two, or write over one they read.

    Args:
        controlled: the program holds some for a while, and recomputing is possible here and there.
    """
    draw = random.Random(seed)
    storages = [Storage(draw.randint(1, 9), Role.RESTING) for _ in range(2)]
    values = [Value(0), Value(1)]
    current = [0, 1]
    last_use = [num_operators] * 2
    operators = []
    for number in range(num_operators):
        reads = tuple(sorted(draw.sample(current, min(len(current), draw.randint(1, 3)))))
        for read in reads:
            storage = values[read].storage
            last_use[storage] = max(last_use[storage], number)
        made = []
        base = values[draw.choice(reads)]
        if draw.random() < in_place and storages[base.storage].role is Role.ACTIVATION:
            made.append(len(values))
            current[current.index(values.index(base))] = len(values)
            values.append(Value(base.storage, base.version + 1))
        for _ in range(0 if made else draw.choice((1, 1, 2))):
            role = Role.RESULT if draw.random() < 0.1 else Role.ACTIVATION
            made.append(len(values))
            current.append(len(values))
            values.append(Value(len(storages)))
            storages.append(Storage(draw.randint(1, 20), role))
            last_use.append(number)
        replay = Replay.NEVER if draw.random() < 0.1 else Replay.PURE
        workspace = draw.choice((0, 0, 5))
        cost_us = float(draw.randint(1, 9))
        operators.append(
            Operator(f"op{number}", reads, tuple(made), cost_us, replay, False, workspace)
        )
    for number, storage_of in enumerate(storages):
        if storage_of.role is Role.RESULT:
            last_use[number] = num_operators
    held_until, unpacks = [], []
    if controlled:
        held_until = [draw.choice((-1, -1, draw.randrange(last + 1))) for last in last_use]
        held_until = [min(held, num_operators - 1) for held in held_until]
        unpacks = [number for number in range(num_operators) if draw.random() < 0.6]
    return OpGraph(
        tuple(storages),
        tuple(values),
        tuple(operators),
        tuple(last_use),
        held_until=tuple(held_until),
        unpacks=tuple(unpacks),
    )
