"""Operators whose output can be made again cheaply from something small that they saved.

One today: BatchNorm in training mode, from its mean and deviation. A network's other cheap replays
(activations, additions, views) are cheap as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memopt.capture import Call, CostTable, Recording
from memopt.capture.costs import real_arguments
from memopt.capture.recording import describe
from memopt.controlled import Split
from memopt.execute.batch_norm import (
    BatchNormCall,
    batch_norm_call,
    exact_way,
    normalise,
)
from memopt.execute.replay_step import Homes, Tensors


def find_splits(recording: Recording, costs: CostTable | None) -> dict[int, Split]:
    """Splits by number of the recorded operator.

    Args:
        costs: times them; None: all 0.
    """
    assert recording.calls is not None
    found = {}
    for number, call in enumerate(recording.calls):
        parts = batch_norm_call(call)
        if parts is None or recording.graph.operators[number].backward or not exact_way(parts):
            continue
        reads = (parts.x, parts.mean, parts.invstd, parts.weight, parts.bias)
        assert parts.output.value is not None
        found[number] = Split(
            parts.output.value,
            tuple(sorted({v.value for v in reads if v is not None and v.value is not None})),
            0.0 if costs is None else _cost_us(parts, call, costs),
        )
    return found


class NormaliseStep:
    """BatchNorm's output again, as a step of a replay."""

    def __init__(self, call: Call, homes: Homes) -> None:
        parts = batch_norm_call(call)
        assert parts is not None
        assert parts.output.value is not None
        way = exact_way(parts)
        assert way is not None
        self._way = way
        views = (parts.x, parts.mean, parts.invstd, parts.weight, parts.bias)
        self._fetches: list[Callable[[Tensors], Any]] = [
            _nothing if view is None else homes.fetch(view) for view in views
        ]
        self._output = parts.output.value
        self.makes = (self._output,)
        self.reads = tuple({v.value for v in views if v is not None and v.value is not None})

    def run(self, tensors: Tensors) -> None:
        """Makes the output from what is there."""
        x, mean, invstd, weight, bias = [fetch(tensors) for fetch in self._fetches]
        tensors[self._output] = normalise(self._way, x, mean, invstd, weight, bias)


def _nothing(_: Tensors) -> None:
    """A weight or bias that is not there."""


def _cost_us(parts: BatchNormCall, call: Call, costs: CostTable) -> float:
    way = exact_way(parts)
    assert way is not None
    views = (parts.x, parts.mean, parts.invstd, parts.weight, parts.bias)
    key = f"normalise{describe(views, with_offsets=False)}"
    return costs.time_us(
        key, parts.x.device, lambda: (normalise, (way, *real_arguments(views)), {})
    )
