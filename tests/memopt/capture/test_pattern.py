from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from memopt.capture import Recording, fingerprint, record, settled
from tests.memopt.capture import steps


def of(build: Callable[[], steps.Built]) -> Recording:
    step, resting = build()
    return record(step, resting=resting)


@pytest.mark.parametrize("build", steps.STEPS, ids=lambda build: build.__name__)
def test_equal_iterations_have_equal_fingerprints(build: Callable[[], steps.Built]) -> None:
    step, resting = build()
    found = set()
    for _ in range(3):
        for thing in resting:
            if isinstance(thing, nn.Module):
                thing.zero_grad()
        found.add(fingerprint(record(step, resting=resting)))
    assert len(found) == 1


def variant(
    *,
    batch: int = 4,
    dtype: torch.dtype = torch.float32,
    other_branch: bool = False,
    scale: float = 2.0,
    accumulates: bool = False,
) -> Recording:
    net = nn.Linear(8, 8).to(dtype)
    x = torch.zeros(batch, 8, dtype=dtype)

    def step() -> None:
        y = net(x) * scale
        (y.sin() if other_branch else y.cos()).sum().backward()

    if accumulates:
        step()
    return record(step, resting=[net, x])


def test_fingerprint_tells_iterations_apart() -> None:
    patterns = [
        fingerprint(recording)
        for recording in (
            variant(),
            variant(batch=5),
            variant(dtype=torch.float64),
            variant(dtype=torch.bfloat16),
            variant(other_branch=True),
            variant(scale=3.0),
            variant(accumulates=True),
        )
    ]
    assert len(set(patterns)) == len(patterns)
    assert fingerprint(variant()) == patterns[0]


def test_pattern_settles_after_equal_iterations_with_the_least_times() -> None:
    first, second, other = variant(), variant(), variant(batch=5)
    assert settled([]) is None
    assert settled([first]) is None
    assert settled([first, other]) is None
    assert settled([first, other, second]) is None
    assert settled([other, first, second], num_equal=3) is None
    found = settled([other, first, second])
    assert found is not None
    assert fingerprint(found) == fingerprint(first)
    for operator, *measured in zip(
        found.graph.operators, first.graph.operators, second.graph.operators, strict=True
    ):
        assert operator.cost_us == min(m.cost_us for m in measured)
    assert settled([first], num_equal=1) == first
