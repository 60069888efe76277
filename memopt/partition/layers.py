"""One layer of a network as a partition planner sees it: what it takes, and its trades with time.

A layer is traced alone, once for all layers that are alike. Its trades are planned by memopt's
planner on that trace, for ever fewer bytes kept from forward to backward:

    model = LayerModel(graph_at, ...)       # graph_at(rows) -> the traced, timed, controlled step
    model.at(128).ways                      # bytes kept against time to remake, at 128 rows

Inputs of layers are always kept, so that a layer is remade from its own input alone. That makes the
sum over layers exact (tests/memopt/partition/test_layers.py runs whole chains), and an upper bound
of what the planner finds on the whole network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from memopt.batch_size import BatchScaling
from memopt.errors import BudgetTooSmallError
from memopt.graph import OpGraph, Role, with_loss_bytes
from memopt.planners.curve import Point, plan_curve
from memopt.schedule import Schedule
from memopt.simulate import ScheduleState

ALL_KEPT, CHECKPOINT = "all kept", "checkpoint"
"""Names of the ways that planners of other systems choose from."""
# Few do for a layer: a network of many has all mixtures of them.
_SHARES_KEPT = (0.7, 0.45, 0.2, 0.0)
_SHARES_OF_PEAK = (0.75,)


@dataclass(frozen=True)
class Way:
    """What a layer keeps, and what that costs.

    Attributes:
        name: for tables.
        kept_bytes: from its forward pass to its backward pass, without its input.
        work_bytes: the most alive in its own passes, without its input; `kept_bytes` included.
        recompute_us: time it adds.
    """

    name: str
    kept_bytes: int
    work_bytes: int
    recompute_us: float


@dataclass(frozen=True)
class Layer:
    """A layer at one number of rows on each device.

    Attributes:
        name: of the segment.
        weight_bytes: of its trained weights, as stored.
        input_bytes, output_bytes: of its activations; an input that needs no gradient counts 0.
        forward_us, backward_us: of its operators.
        ways: by bytes kept, from all to none; the last is a plain checkpoint.
    """

    name: str
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    forward_us: float
    backward_us: float
    ways: tuple[Way, ...]


class LayerModel:
    """A layer at any number of rows.

    Args:
        graph_at: the traced and timed step of the layer alone at a number of rows, as
            `memopt.controlled` gives it. Called for `base_rows`, and for twice as many once other
            rows are asked for.
        input_row_bytes: of one row's input; 0 where it needs no gradient.
        base_rows: rows at which times are taken; they grow with the rows.

    Raises:
        MemoptError: its bytes do not grow evenly with the rows.
    """

    def __init__(
        self,
        graph_at: Callable[[int], OpGraph],
        *,
        name: str,
        weight_bytes: int,
        input_row_bytes: int,
        base_rows: int,
    ) -> None:
        self._graph_at = graph_at
        self._base_rows = base_rows
        self._base_graph = graph_at(base_rows)
        self._name = name
        self._weight_bytes = weight_bytes
        self._input_row_bytes = input_row_bytes
        self._schedules = self._plan(self._base_graph)

    def at(self, rows: int) -> Layer:
        """The layer at that many rows."""
        graph = self._base_graph if rows == self._base_rows else self._scaling.graph(rows)
        forward_us = sum(op.cost_us for op in graph.operators if not op.backward)
        backward_us = sum(op.cost_us for op in graph.operators if op.backward)
        output_bytes = _output_bytes(graph)
        ways = [
            _way(graph, name, schedule, output_bytes) for name, schedule in self._schedules.items()
        ]
        # Run forward again as a whole: what checkpointing does without a planner.
        plain = ways[0]
        checkpoint = Way(CHECKPOINT, 0, plain.work_bytes, forward_us)
        return Layer(
            self._name,
            self._weight_bytes,
            self._input_row_bytes * rows,
            output_bytes,
            forward_us,
            backward_us,
            (*ways, checkpoint),
        )

    @cached_property
    def _scaling(self) -> BatchScaling:
        base = self._base_rows

        def graph_at(rows: int) -> OpGraph:
            return self._base_graph if rows == base else self._graph_at(rows)

        return BatchScaling(graph_at, base, checked=False)

    @staticmethod
    def _plan(graph: OpGraph) -> dict[str, Schedule]:
        """Schedules from keeping everything to keeping as little as the planner can, by name."""
        output_bytes = _output_bytes(graph)
        plain = _way(graph, "", Schedule(), output_bytes)
        found = {ALL_KEPT: Schedule()}

        def note(points: Sequence[Point], suffix: str = "") -> None:
            for point in points:
                if point.schedule is not None and point.schedule not in found.values():
                    kept = _way(graph, "", point.schedule, output_bytes).kept_bytes
                    share = kept / max(1, plain.kept_bytes)
                    found.setdefault(f"{share:.0%} kept{suffix}", point.schedule)

        # A loss so large that the moment between forward and backward decides alone.
        loss_bytes = 4 * graph.plain_peak_bytes()
        resting_bytes = 2 * output_bytes + loss_bytes
        budgets = [resting_bytes + int(share * plain.kept_bytes) for share in _SHARES_KEPT]
        note(plan_curve(with_loss_bytes(graph, loss_bytes), budgets))
        # Within the backward pass, too, fewer bytes may be worth their time.
        peak_bytes = graph.plain_peak_bytes()
        note(
            plan_curve(graph, [int(share * peak_bytes) for share in _SHARES_OF_PEAK]), ", low peak"
        )
        return found


def run_of(layers: Sequence[Layer]) -> Layer:
    """Neighbouring layers as one of which only the first input is kept.

    Going back, the inputs of the others are remade by running forward again, and kept until their
    own layers are through; what lies inside a layer is remade from its input then (Chen et al.,
    "Training Deep Nets with Sublinear Memory Cost", 2016).
    """
    work_bytes = inputs_bytes = 0
    gradient_bytes = sum(layer.weight_bytes for layer in layers)
    recompute_us = sum(layer.forward_us for layer in layers[:-1])
    for layer in layers:
        leanest = min(layer.ways, key=lambda way: (way.kept_bytes, way.recompute_us))
        gradient_bytes -= layer.weight_bytes
        most = inputs_bytes + leanest.work_bytes + gradient_bytes
        work_bytes = max(work_bytes, most)
        inputs_bytes += layer.output_bytes
        recompute_us += leanest.recompute_us
    return Layer(
        f"{layers[0].name} to {layers[-1].name}",
        sum(layer.weight_bytes for layer in layers),
        layers[0].input_bytes,
        layers[-1].output_bytes,
        sum(layer.forward_us for layer in layers),
        sum(layer.backward_us for layer in layers),
        (Way(f"{len(layers)} layers remade", 0, work_bytes, recompute_us),),
    )


def _way(graph: OpGraph, name: str, schedule: Schedule, output_bytes: int) -> Way:
    state = ScheduleState(graph)
    for gap in sorted(schedule.drops, key=lambda gap: (gap.start, gap.value)):
        if not state.drop(gap):
            raise BudgetTooSmallError(f"{name}: value {gap.value} cannot be remade", 0)
    memory = state.memory_bytes()
    first_backward = sum(not operator.backward for operator in graph.operators)
    # Alone, a layer has its output to the end, and its gradient from before backward on. In a
    # chain the output is the next layer's input and goes with that; its gradient is there.
    kept = state.bytes_before(first_backward) - 2 * output_bytes
    work = int(memory[first_backward:].max(initial=0)) - output_bytes
    forward = int(memory[:first_backward].max(initial=0)) - output_bytes
    return Way(name, max(0, kept), max(work, forward, kept), state.recompute_us)


def _output_bytes(graph: OpGraph) -> int:
    """Bytes of what the forward pass makes and outlives the step."""
    made_forward = {
        graph.values[value].storage
        for operator in graph.operators
        if not operator.backward
        for value in operator.makes
    }
    return sum(
        storage.size_bytes
        for number, storage in enumerate(graph.storages)
        if storage.role is Role.RESULT
        and number in made_forward
        and graph.last_use[number] >= len(graph.operators)
    )
