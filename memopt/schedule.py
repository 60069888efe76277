"""Which values are dropped between which of their uses, and what that means.

The life of a value is its making and its uses, in program order; a *gap* lies between two of them.
A schedule names parts of gaps in which values are dropped. At the end of one, just before an
operator, the value is recomputed: its maker runs again, and before it the makers of whatever it
reads that is not there at that moment. All of one operator's recomputations run in program order;
what they make on the way is dropped again as soon as none of them needs it, unless its own drop
ends there: so a segment that is recomputed for its last value may keep all others.

A value is one version of a storage: one that was written in place is recomputed from its base. It
may be dropped when it is an activation and its maker may run again; a drop whose recomputation
would need what can be neither found nor made again at its end is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memopt.graph import OpGraph, Replay, Role, first_made


@dataclass(frozen=True)
class Gap:
    """A part of a value's life in which the program does not read it.

    Attributes:
        value: its number.
        start: operator that makes or reads it last before.
        end: operator that reads it next, or an earlier one; what lies between is free of it.
    """

    value: int
    start: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """Gaps in which values are dropped."""

    drops: frozenset[Gap] = frozenset()


@dataclass(frozen=True)
class Chain:
    """What is recomputed before one operator.

    Attributes:
        operators: makers to run again, in program order.
        cost_us: of all of them.
        extra_bytes: the most that it takes beyond what is alive before the operator.
        leaves: values read by it that are there already.
    """

    operators: tuple[int, ...]
    cost_us: float
    extra_bytes: int
    leaves: frozenset[int]


class Lives:
    """Lives of a graph's values, and which may be dropped and recomputed.

    Attributes:
        maker: operator of each value; -1 for what is there from the start.
        gaps: of each value that may be dropped, in order; the others have none.
        size_bytes: of each value's storage.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.maker = [-1 if made is None else made for made in graph.maker()]
        self.size_bytes = [graph.storages[value.storage].size_bytes for value in graph.values]
        self._first = [-1 if made is None else made for made in first_made(graph)]
        uses: list[list[int]] = [[] for _ in graph.values]
        for number, operator in enumerate(graph.operators):
            for value in operator.reads:
                uses[value].append(number)
        # A version is there until the operator that writes the next one has read it.
        self._overwritten = [len(graph.operators)] * len(graph.values)
        current: dict[int, int] = {}
        for number, operator in enumerate(graph.operators):
            for value in operator.makes:
                storage = graph.values[value].storage
                if storage in current:
                    self._overwritten[current[storage]] = number
                current[storage] = value
        for value, held in enumerate(graph.values):
            # What is there from the start is overwritten by the first that writes its storage.
            if self.maker[value] < 0 and self._first[held.storage] >= 0:
                self._overwritten[value] = self._first[held.storage]
        self._last = [
            max([self.maker[number], *uses[number], self._held(number)])
            for number in range(len(uses))
        ]
        self._recomputes_at = frozenset(graph.unpacks or range(len(graph.operators)))
        self.gaps = [
            tuple(self._gaps(number, events)) if self.may_drop(number) else ()
            for number, events in enumerate(uses)
        ]

    def _gaps(self, value: int, uses: Sequence[int]) -> Iterator[Gap]:
        held = self._held(value)
        for last, end in zip([self.maker[value], *uses], uses, strict=False):
            start = max(last, held)
            if end - start > 1 and self.recomputes_at(end):
                yield Gap(value, start, end)

    def _held(self, value: int) -> int:
        """Operator up to which the program itself holds a value, and does not overwrite it."""
        graph = self.graph
        held = graph.held_until[graph.values[value].storage] if graph.held_until else -1
        return min(held, self._overwritten[value])

    def recomputes_at(self, operator: int) -> bool:
        """Whether something can be recomputed just before an operator."""
        return operator in self._recomputes_at

    def last_use(self, value: int) -> int:
        """Operator up to which the value is used, or held by the program; or that makes it."""
        return self._last[value]

    def may_drop(self, value: int) -> bool:
        """Whether the value is an activation that its maker may make again."""
        graph, maker = self.graph, self.maker[value]
        return (
            maker >= 0
            and graph.storages[graph.values[value].storage].role is Role.ACTIVATION
            and graph.operators[maker].replay is not Replay.NEVER
        )

    def there(self, value: int, moment: int, dropped: Iterable[Gap]) -> bool:
        """Whether a value exists just before operator `moment`, given its dropped gaps."""
        if not self.maker[value] < moment <= self._overwritten[value]:
            return False
        storage = self.graph.values[value].storage
        if self.graph.storages[storage].role is Role.RESTING:
            return True
        if not self.may_drop(value):
            return moment <= self.graph.last_use[storage]
        if moment > self._last[value]:
            return False
        return not any(gap.start < moment <= gap.end for gap in dropped)

    def chain(
        self, moment: int, targets: Iterable[int], dropped: dict[int, set[Gap]]
    ) -> Chain | None:
        """What recomputes `targets` before operator `moment`; None where it cannot be done.

        Args:
            dropped: gaps by value.
        """
        graph = self.graph
        wanted = set(targets)
        needed, leaves, open_values = set(wanted), set(), list(wanted)
        while open_values:
            operator = graph.operators[self.maker[open_values.pop()]]
            for read in operator.reads:
                if read in needed:
                    continue
                if self.there(read, moment, dropped.get(read, ())):
                    leaves.add(read)
                    continue
                if not self.may_drop(read) or self.maker[read] >= moment:
                    return None
                needed.add(read)
                open_values.append(read)
        operators = sorted({self.maker[value] for value in needed})
        last_reader = {
            read: number
            for number in operators
            for read in graph.operators[number].reads
            if read in needed
        }
        held = most = 0
        for number in operators:
            operator = graph.operators[number]
            # Written in place, over a version that was made again for it.
            bases = {graph.values[read].storage for read in operator.reads if read in needed}
            made = sum(
                self.size_bytes[value]
                for value in operator.makes
                if graph.values[value].storage not in bases
            )
            most = max(most, held + made + operator.workspace_bytes)
            held += sum(
                self.size_bytes[value]
                for value in operator.makes
                if value in wanted or last_reader.get(value, -1) > number
            )
            held -= sum(
                self.size_bytes[read]
                for read in operator.reads
                if read in needed and read not in wanted and last_reader[read] == number
            )
        return Chain(
            tuple(operators),
            sum(graph.operators[number].cost_us for number in operators),
            most,
            frozenset(leaves),
        )
