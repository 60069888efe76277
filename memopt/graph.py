"""One training iteration as data: storages, what they hold, operators, and when memory is let go.

    Storage     bytes of memory with one life; views share it
    Value       what a storage holds between two writes: version 0, 1, ...
    Operator    reads values and makes values, in a measured time
    OpGraph     operators in program order, and after which of them the program drops a storage

Every planner, policy and simulator works on an `OpGraph`; captures and traces make one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from memopt.errors import MemoptError


class Role(Enum):
    """What a storage is for."""

    RESTING = "resting"
    """There before and after the iteration: weights, buffers, optimizer state, inputs."""
    ACTIVATION = "activation"
    """Made in the iteration, and let go in it."""
    RESULT = "result"
    """Made in the iteration and kept: gradients of weights, the loss, outputs."""


class Replay(Enum):
    """Whether an operator may be run again for its outputs."""

    PURE = "pure"
    """Gives the same bits each time."""
    RANDOM = "random"
    """Gives the same bits when the generator's state is restored first."""
    NEVER = "never"
    """Collectives, mutations of what is not its own, unknown operators."""


@dataclass(frozen=True)
class Storage:
    """A piece of memory.

    Attributes:
        size_bytes: of the whole, at least 0.
    """

    size_bytes: int
    role: Role = Role.ACTIVATION


@dataclass(frozen=True)
class Value:
    """Contents of a storage between two writes.

    Attributes:
        storage: number of the storage.
        version: 0 for the first contents.
    """

    storage: int
    version: int = 0


@dataclass(frozen=True)
class Operator:
    """One operator of the iteration.

    Attributes:
        name: such as aten::convolution.
        reads: numbers of values, each once.
        makes: numbers of values: of new storages, or new versions of storages it writes to.
        cost_us: measured or modelled time, in microseconds.
        backward: runs in the backward pass.
        workspace_bytes: memory it takes beyond its outputs while it runs.
    """

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    cost_us: float
    replay: Replay = Replay.PURE
    backward: bool = False
    workspace_bytes: int = 0


@dataclass(frozen=True)
class OpGraph:
    """One iteration.

    Attributes:
        storages: by number.
        values: by number.
        operators: in program order.
        last_use: of each storage, number of the operator after which the program drops it: it is
            not read again in the plain iteration, nor held. -1 for one dropped before the first
            operator, len(operators) for one that outlives the iteration.
        saved: numbers of values that the forward pass saved for backward, in order of saving.
        held_until: of each storage, number of the operator up to which the program itself holds
            it, so that its values cannot be dropped before; -1 for none. Empty: all -1.
        unpacks: numbers of the operators before which saved values are asked for; only there can
            something be recomputed. Empty: before any operator.
    """

    storages: tuple[Storage, ...]
    values: tuple[Value, ...]
    operators: tuple[Operator, ...]
    last_use: tuple[int, ...]
    saved: tuple[int, ...] = field(default=())
    held_until: tuple[int, ...] = field(default=())
    unpacks: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if problem := next(iter(problems(self)), None):
            raise MemoptError(f"graph of {len(self.operators)} operators: {problem}")

    def maker(self) -> list[int | None]:
        """Number of the operator that makes each value; None for resting ones."""
        makers: list[int | None] = [None] * len(self.values)
        for number, operator in enumerate(self.operators):
            for value in operator.makes:
                makers[value] = number
        return makers

    def plain_peak_bytes(self) -> int:
        """Largest sum of bytes alive in the plain iteration, beyond resting storages."""
        return max(self.live_bytes(), default=0)

    def live_bytes(self) -> list[int]:
        """Bytes alive while each operator runs, beyond resting storages, its workspace included."""
        change = [0] * (len(self.operators) + 1)
        for number, first in enumerate(first_made(self)):
            storage = self.storages[number]
            if first is None or storage.role is Role.RESTING:
                continue
            change[first] += storage.size_bytes
            end = max(first, self.last_use[number]) + 1
            if end < len(self.operators):
                change[end] -= storage.size_bytes
        alive, found = 0, []
        for number, operator in enumerate(self.operators):
            alive += change[number]
            found.append(alive + operator.workspace_bytes)
        return found

    def total_cost_us(self) -> float:
        """Time of the plain iteration, in microseconds."""
        return sum(operator.cost_us for operator in self.operators)


def first_made(graph: OpGraph) -> list[int | None]:
    """Number of the operator that first writes each storage; None for resting ones."""
    found: list[int | None] = [None] * len(graph.storages)
    for number, operator in enumerate(graph.operators):
        for value in operator.makes:
            storage = graph.values[value].storage
            if found[storage] is None:
                found[storage] = number
    return found


def with_loss_bytes(graph: OpGraph, loss_bytes: int) -> OpGraph:
    """The iteration of a loss that takes so many bytes between forward and backward pass.

    Nothing is remade then, so it is as if the last forward operator worked with them.
    """
    if not loss_bytes:
        return graph
    last = sum(not operator.backward for operator in graph.operators) - 1
    operators = list(graph.operators)
    own = max(operators[last].workspace_bytes, loss_bytes)
    operators[last] = replace(operators[last], workspace_bytes=own)
    return replace(graph, operators=tuple(operators))


def problems(graph: OpGraph) -> Sequence[str]:
    """What makes a graph impossible: numbers out of range, values read before they are made."""
    found: list[str] = []
    if len(graph.last_use) != len(graph.storages):
        found.append(f"{len(graph.last_use)} last uses for {len(graph.storages)} storages")
    if graph.held_until and len(graph.held_until) != len(graph.storages):
        found.append(f"{len(graph.held_until)} holds for {len(graph.storages)} storages")
    if any(not 0 <= number < len(graph.operators) for number in graph.unpacks):
        found.append("saved values are asked for before an operator that is not there")
    for number, value in enumerate(graph.values):
        if not 0 <= value.storage < len(graph.storages):
            found.append(f"value {number} is of storage {value.storage}, which is not there")
    if found:
        return found
    made_later = {made for operator in graph.operators for made in operator.makes}
    current = {
        value.storage: number
        for number, value in enumerate(graph.values)
        if value.version == 0 and number not in made_later
    }
    for number, operator in enumerate(graph.operators):
        what = f"operator {number} ({operator.name})"
        for read in operator.reads:
            if not 0 <= read < len(graph.values):
                found.append(f"{what} reads value {read}, which is not there")
            elif current.get(graph.values[read].storage) != read:
                found.append(f"{what} reads value {read}, which is not made yet or overwritten")
            elif graph.last_use[graph.values[read].storage] < number:
                found.append(f"{what} reads value {read} after its last use")
        for made in operator.makes:
            if not 0 <= made < len(graph.values):
                found.append(f"{what} makes value {made}, which is not there")
                continue
            current[graph.values[made].storage] = made
    return found
