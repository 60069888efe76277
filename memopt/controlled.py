"""The part of an iteration that saved-tensor hooks control, as an `OpGraph` that planners can plan.

Hooks decide on one thing: whether a tensor that autograd saved is there between the end of the
program's own references and the moment at which backward asks for it. So in this graph

    held_until   is when the program's own references end; nothing can be dropped before,
    unpacks      are the operators before which a node of autograd unpacks what it saved,
    a read       of a saved value in backward is a whole node: from its unpacking to its release.

Operators are the recorded ones, without those that only make views; an operator that can be split
(BatchNorm: its statistics are kept, its output made again from them) is two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memopt.capture import Recording
from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role


@dataclass(frozen=True)
class Split:
    """How the first result of an operator is made again from what else it made.

    Attributes:
        remade: number of the value.
        reads: values it is made from; some of them made by the operator itself.
        cost_us: time of that.
    """

    remade: int
    reads: tuple[int, ...]
    cost_us: float


@dataclass(frozen=True)
class ControlledStep:
    """A recorded iteration as planners see it.

    Attributes:
        graph: values and storages have the numbers of the recording, operators have not.
        recording: where it comes from.
        source: of each operator, its number in the recording.
        halves: operators that are the second half of a split one.
        groups: of each operator in `graph.unpacks`, the numbers of the unpack groups before it.
        ordinals: of the saved tensors that are values of the iteration's own, as they were when
            they were saved. Others are handed through: resting ones, those without a value, and
            those that the operator which saves them writes to afterwards (the noise of RReLU).
    """

    graph: OpGraph
    recording: Recording
    source: tuple[int, ...]
    halves: frozenset[int]
    groups: Mapping[int, tuple[int, ...]]
    ordinals: frozenset[int]


def controlled(recording: Recording, splits: Mapping[int, Split] | None = None) -> ControlledStep:
    """What hooks can control of a recorded iteration.

    Args:
        recording: of one forward and one backward pass, with `program_last_use` and calls.
        splits: by number of the recorded operator.

    Raises:
        MemoptError: the recording lacks what is needed, or runs forward operators after backward
            ones.
    """
    graph, splits = recording.graph, splits or {}
    if recording.program_last_use is None or recording.calls is None:
        raise MemoptError("this recording has no calls or no program's own lifetimes: record anew")
    num_forward = sum(not operator.backward for operator in graph.operators)
    if any(operator.backward for operator in graph.operators[:num_forward]):
        raise MemoptError("the step runs forward operators after its backward pass began")

    in_reach = _resting_in_reach(recording)
    starts = {group.before for group in recording.unpacks}
    operators: list[Operator] = []
    source: list[int] = []
    halves: set[int] = set()
    for number, operator in enumerate(graph.operators):
        if not operator.makes and number not in starts:
            continue
        if operator.replay is Replay.RANDOM or not in_reach.issuperset(
            read for read in operator.reads if _is_resting(graph, read)
        ):
            operator = replace(operator, replay=Replay.NEVER)
        source.append(number)
        split = splits.get(number)
        if split is None:
            operators.append(operator)
            continue
        rest = tuple(made for made in operator.makes if made != split.remade)
        first_us = max(operator.cost_us - split.cost_us, 0.0)
        first = replace(operator, makes=rest, cost_us=first_us, replay=Replay.NEVER)
        second = replace(operator, reads=split.reads, makes=(split.remade,), cost_us=split.cost_us)
        operators += [first, second]
        source.append(number)
        halves.add(len(operators) - 1)

    # Numbers here of recorded operators; of one that is left out, that of the one before.
    last_at_or_before = [bisect_right(source, number) - 1 for number in range(len(graph.operators))]
    first_at = {number: at for at, number in reversed(list(enumerate(source)))}

    def moved(number: int) -> int:
        if number < 0:
            return -1
        return len(operators) if number >= len(graph.operators) else last_at_or_before[number]

    reads = [set(operator.reads) if not operator.backward else set() for operator in operators]
    # What autograd hands on within backward is read where it is; saved values by their nodes.
    for at, number in enumerate(source):
        if graph.operators[number].backward:
            reads[at].update(graph.operators[number].reads)
    groups: dict[int, tuple[int, ...]] = {}
    ordinals = _own_ordinals(recording)
    for index, group in enumerate(recording.unpacks):
        if group.before >= len(graph.operators):
            continue
        start = first_at[group.before]
        groups[start] = (*groups.get(start, ()), index)
        for ordinal in group.ordinals:
            saved = recording.saved[ordinal]
            if ordinal not in ordinals:
                continue
            assert saved.view.value is not None
            end = moved(min(saved.released_after, len(graph.operators) - 1))
            for at in range(start, max(start, end) + 1):
                reads[at].discard(saved.view.value)
            reads[start].add(saved.view.value)
            reads[max(start, end)].add(saved.view.value)
    for at, operator in enumerate(operators):
        operators[at] = replace(operator, reads=tuple(sorted(reads[at])))
    return ControlledStep(
        OpGraph(
            storages=graph.storages,
            values=graph.values,
            operators=tuple(operators),
            last_use=tuple(moved(number) for number in graph.last_use),
            saved=graph.saved,
            held_until=tuple(moved(number) for number in recording.program_last_use),
            unpacks=tuple(sorted(groups)),
        ),
        recording,
        tuple(source),
        frozenset(halves),
        groups,
        ordinals,
    )


def _own_ordinals(recording: Recording) -> frozenset[int]:
    graph = recording.graph
    newest = {value.storage: number for number, value in enumerate(graph.values)}
    return frozenset(
        ordinal
        for ordinal, saved in enumerate(recording.saved)
        if saved.view.value is not None
        and not _is_resting(graph, saved.view.value)
        and saved.view.value == newest[graph.values[saved.view.value].storage]
    )


def _is_resting(graph: OpGraph, value: int) -> bool:
    return graph.storages[graph.values[value].storage].role is Role.RESTING


def _resting_in_reach(recording: Recording) -> set[int]:
    """Resting values that a replay can find: those of storages with a name."""
    named = set(recording.resting_names.values())
    return {number for number, value in enumerate(recording.graph.values) if value.storage in named}
