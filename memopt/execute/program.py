"""A schedule as what the hooks do: which saved tensor stays, what runs again before which node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch

from memopt.capture import Recording, TensorView
from memopt.controlled import ControlledStep
from memopt.execute.replay_step import Homes, Tensors, can_replay, recorded_step
from memopt.execute.splits import NormaliseStep
from memopt.graph import Replay, Role
from memopt.schedule import Gap, Lives, Schedule


class Step(Protocol):
    """What makes values again."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Values that must be there."""

    @property
    def makes(self) -> tuple[int, ...]:
        """Values that are there afterwards."""

    def run(self, tensors: Tensors) -> None:
        """Puts what it makes into `tensors`."""


class Packed(NamedTuple):
    """What is done with one saved tensor, found by its ordinal.

    Attributes:
        shape, dtype: that it must have, or the pattern has changed.
        value: its number; -1 for one that is handed through: resting, or without a value.
        view: its geometry.
        is_home: whether this is the geometry in which the value is kept.
        stays: kept from the forward pass until its next use.
        is_pinned: cannot always be made again, so autograd itself holds it.
        resting: number of the resting value that it must be; -1 for none.
        group: number of the group that unpacks it; -1 for none.
    """

    shape: torch.Size
    dtype: torch.dtype
    value: int
    view: TensorView
    is_home: bool
    stays: bool
    is_pinned: bool
    resting: int
    group: int


@dataclass(frozen=True)
class Group:
    """What happens around one node of backward.

    Attributes:
        size: saved tensors that it unpacks, without those that are handed through.
        targets: values that are made again before it.
        steps: how, in order, each with the values that can go once it has run.
        leaves: values that must be there for that.
        releases: values that go once the node has unpacked.
    """

    size: int
    targets: tuple[int, ...]
    steps: tuple[tuple[Step, tuple[int, ...]], ...]
    leaves: tuple[int, ...]
    releases: tuple[int, ...]


class Program:
    """A schedule, ready to be run by a `PlannedPass`.

    Attributes:
        packed: by ordinal.
        groups: by number of the unpack group.
        resting: of values that replays read and the model or its inputs hold: their names.
    """

    def __init__(self, step: ControlledStep, schedule: Schedule) -> None:
        self._step = step
        self._lives = Lives(step.graph)
        self._dropped: dict[int, set[Gap]] = {}
        for gap in schedule.drops:
            self._dropped.setdefault(gap.value, set()).add(gap)
        recording = step.recording
        self.homes = Homes()
        assert recording.calls is not None
        for call, operator in zip(recording.calls, recording.graph.operators, strict=True):
            self.homes.add(call, operator.makes)
        self.resting = _resting_names(recording)
        self._steps: dict[int, Step] = {}
        self._group_of = {
            ordinal: index
            for index, group in enumerate(recording.unpacks)
            for ordinal in group.ordinals
        }
        self._start_of = {
            index: start for start, indices in step.groups.items() for index in indices
        }
        self._unpacked_at = _unpacked_at(step)
        self._values_at: dict[int, list[int]] = {}
        for value, starts in self._unpacked_at.items():
            for start in starts:
                self._values_at.setdefault(start, []).append(value)
        self._remakable = self._find_remakable()
        self.packed = tuple(self._packed(ordinal) for ordinal in range(len(recording.saved)))
        self.groups = self._find_groups()

    @cached_property
    def drops_anything(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._dropped)

    @cached_property
    def most_kept_bytes(self) -> int:
        """Of what the plan keeps from the forward pass to its backward, together."""
        kept = {packed.value for packed in self.packed if packed.stays and not packed.is_pinned}
        return sum(self.size_bytes(value) for value in kept)

    def size_bytes(self, value: int) -> int:
        """Of a value's storage."""
        return self._lives.size_bytes[value]

    def cost_of_a_byte_us(self, value: int) -> float:
        """Time to make a value again from what its operator reads, per byte."""
        cost_us = self._step.graph.operators[self._lives.maker[value]].cost_us
        return cost_us / max(self.size_bytes(value), 1)

    def step_of(self, value: int) -> Step | None:
        """What makes a value again; None for one that cannot be."""
        if value >= len(self._remakable) or not self._remakable[value]:
            return None
        return self._operator_step(self._lives.maker[value])

    def order_of(self, value: int) -> int:
        """Place of a value's maker in the program."""
        return self._lives.maker[value]

    def _operator_step(self, operator: int) -> Step:
        if operator not in self._steps:
            recording = self._step.recording
            source = self._step.source[operator]
            assert recording.calls is not None
            self._steps[operator] = (
                NormaliseStep(recording.calls[source], self.homes)
                if operator in self._step.halves
                else recorded_step(recording, source, self.homes)
            )
        return self._steps[operator]

    def _find_remakable(self) -> list[bool]:
        """Values that can be made again from resting ones and pinned ones at any time."""
        graph, lives = self._step.graph, self._lives
        saved = set(graph.saved)
        found = [False] * len(graph.values)
        there = [
            graph.storages[value.storage].role is Role.RESTING or number in saved
            for number, value in enumerate(graph.values)
        ]
        for number, operator in enumerate(graph.operators):
            if operator.backward:
                break
            can = operator.replay is Replay.PURE and can_replay(
                self._step.recording, self._step.source[number]
            )
            can = can and all(there[read] or found[read] for read in operator.reads)
            for made in operator.makes:
                found[made] = can and lives.may_drop(made)
        return found

    def _packed(self, ordinal: int) -> Packed:
        view = self._step.recording.saved[ordinal].view
        value = view.value
        group = self._group_of.get(ordinal, -1)
        shape = torch.Size(view.shape)
        if value is None or ordinal not in self._step.ordinals:
            resting = -1 if value is None or value not in self.resting else value
            return Packed(shape, view.dtype, -1, view, False, True, True, resting, group)
        is_pinned = not self._remakable[value]
        return Packed(
            shape,
            view.dtype,
            value,
            view,
            is_home=self.homes.of(value) == view,
            stays=is_pinned or self._stays(value),
            is_pinned=is_pinned,
            resting=-1,
            group=group,
        )

    def _stays(self, value: int) -> bool:
        """Whether a value is there from the forward pass to its first use in backward."""
        uses = self._unpacked_at.get(value)
        return uses is not None and not any(
            gap.start < uses[0] for gap in self._dropped.get(value, ())
        )

    def _find_groups(self) -> tuple[Group, ...]:
        step, lives = self._step, self._lives
        targets: dict[int, list[int]] = {}
        for value, gaps in self._dropped.items():
            for gap in gaps:
                targets.setdefault(gap.end, []).append(value)
        groups: list[Group] = []
        for index, unpacked in enumerate(step.recording.unpacks):
            start = self._start_of.get(index)
            size = sum(self.packed[ordinal].value >= 0 for ordinal in unpacked.ordinals)
            if start is None:
                groups.append(Group(size, (), (), (), ()))
                continue
            # Several groups before one operator: the first remakes for all.
            is_first = step.groups[start][0] == index
            is_last = step.groups[start][-1] == index
            wanted = tuple(sorted(targets.get(start, ()))) if is_first else ()
            steps: list[tuple[Step, tuple[int, ...]]] = []
            leaves: tuple[int, ...] = ()
            if wanted:
                chain = lives.chain(start, wanted, self._dropped)
                assert chain is not None, "a schedule that simulates can be compiled"
                leaves = tuple(sorted(chain.leaves))
                steps = self._chain_steps(start, chain.operators, set(wanted))
            releases = self._releases(start) if is_last else ()
            groups.append(Group(size, wanted, tuple(steps), leaves, releases))
        return tuple(groups)

    def _chain_steps(
        self, start: int, operators: tuple[int, ...], wanted: set[int]
    ) -> list[tuple[Step, tuple[int, ...]]]:
        chain = [self._operator_step(number) for number in operators]
        temporary = {
            value
            for step in chain
            for value in step.makes
            if value not in wanted
            and not self._lives.there(value, start, self._dropped.get(value, ()))
        }
        last_reader = {read: place for place, step in enumerate(chain) for read in step.reads}
        frees: list[list[int]] = [[] for _ in chain]
        for place, step in enumerate(chain):
            for value in temporary.intersection(step.makes):
                frees[max(place, last_reader.get(value, place))].append(value)
        return [(step, tuple(free)) for step, free in zip(chain, frees, strict=True)]

    def _releases(self, start: int) -> tuple[int, ...]:
        """Values that are not kept beyond the nodes that unpack before `start`."""
        found = []
        for value in self._values_at.get(start, ()):
            if not self._lives.may_drop(value):
                continue
            uses = self._unpacked_at[value]
            following = next((use for use in uses if use > start), None)
            if following is None or any(
                start <= gap.start < following for gap in self._dropped.get(value, ())
            ):
                found.append(value)
        return tuple(sorted(found))


def _resting_names(recording: Recording) -> dict[int, str]:
    """Names of resting values as the step finds them."""
    graph = recording.graph
    by_storage = {storage: name for name, storage in recording.resting_names.items()}
    made = {value for operator in graph.operators for value in operator.makes}
    return {
        number: by_storage[value.storage]
        for number, value in enumerate(graph.values)
        if value.storage in by_storage and number not in made
    }


def _unpacked_at(step: ControlledStep) -> dict[int, list[int]]:
    """Operators before which each value is unpacked, in order."""
    found: dict[int, list[int]] = {}
    for start in sorted(step.groups):
        for index in step.groups[start]:
            for ordinal in step.recording.unpacks[index].ordinals:
                value = step.recording.saved[ordinal].view.value
                if ordinal not in step.ordinals:
                    continue
                assert value is not None
                if start not in found.setdefault(value, []):
                    found[value].append(start)
    return found
