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

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memopt.graph import OpGraph, Replay, Role


class Gap(NamedTuple):
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


class QuickChain(NamedTuple):
    """A `Chain` with what planning asks of it.

    Attributes:
        operators: makers to run again, in program order.
        ran: the same.
        cost_us: of all of them.
        extra_bytes: the most that it takes beyond what is alive before the operator.
        touched: values made on the way, and those that may be dropped whose presence decided it.
    """

    operators: list[int]
    ran: set[int]
    cost_us: float
    extra_bytes: int
    touched: set[int]


class Lives:
    """Lives of a graph's values, and which may be dropped and recomputed.

    What planning asks again and again is precomputed, by number of the value or operator.

    Attributes:
        maker: operator of each value; -1 for what is there from the start.
        gaps: of each value that may be dropped, in order; the others have none.
        size_bytes: of each value's storage.
        inputs: of each operator, what it reads that may be dropped.
        cost_us: of each operator.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        count = len(graph.operators)
        self.maker = [-1 if made is None else made for made in graph.maker()]
        self.size_bytes = [graph.storages[value.storage].size_bytes for value in graph.values]
        self.cost_us = [operator.cost_us for operator in graph.operators]
        uses: list[list[int]] = [[] for _ in graph.values]
        for number, operator in enumerate(graph.operators):
            for value in operator.reads:
                uses[value].append(number)
        self._overwritten = _overwritten(graph, self.maker)
        self._may_drop = [
            maker >= 0
            and graph.storages[value.storage].role is Role.ACTIVATION
            and graph.operators[maker].replay is not Replay.NEVER
            for value, maker in zip(graph.values, self.maker, strict=True)
        ]
        self._last = [
            max([self.maker[number], *uses[number], self._held(number)])
            for number in range(len(uses))
        ]
        self._until = [self._end(number) for number in range(len(uses))]
        self.inputs = [
            tuple(read for read in operator.reads if self._may_drop[read])
            for operator in graph.operators
        ]
        # Operator before which the rest of what one reads is there for the last time.
        self._runs_until = [
            min(
                (self._until[read] for read in operator.reads if not self._may_drop[read]),
                default=count,
            )
            for operator in graph.operators
        ]
        self._outputs = [
            tuple((made, self.size_bytes[made]) for made in operator.makes if self.size_bytes[made])
            for operator in graph.operators
        ]
        # Several that may be dropped, of one operator.
        droppable = [
            tuple(made for made, _ in outputs if self._may_drop[made]) for outputs in self._outputs
        ]
        self._made_together = [made if len(made) > 1 else () for made in droppable]
        self._made_bytes = [sum(size for _, size in outputs) for outputs in self._outputs]
        self._workspace = [operator.workspace_bytes for operator in graph.operators]
        # What an operator reads and writes over.
        self._bases = [_bases(graph, number) for number in range(count)]
        self._moments = sorted(set(graph.unpacks)) or list(range(count))
        self._recomputes_at = frozenset(self._moments)
        self.gaps = [
            tuple(self._gaps(number, events)) if self._may_drop[number] else ()
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

    def _end(self, value: int) -> int:
        """Operator before which a value that is never dropped is there for the last time."""
        graph, overwritten = self.graph, self._overwritten[value]
        storage = graph.values[value].storage
        if graph.storages[storage].role is Role.RESTING:
            return overwritten
        if self._may_drop[value]:
            return min(self._last[value], overwritten)
        return min(graph.last_use[storage], overwritten)

    def recomputes_at(self, operator: int) -> bool:
        """Whether something can be recomputed just before an operator."""
        return operator in self._recomputes_at

    def last_recompute(self, operator: int) -> int:
        """The last operator up to this one before which something can be recomputed; or -1."""
        place = bisect_right(self._moments, operator)
        return self._moments[place - 1] if place else -1

    def there_until(self, value: int) -> int:
        """Operator before which a value that is never dropped is there for the last time."""
        return self._until[value]

    def last_use(self, value: int) -> int:
        """Operator up to which the value is used, or held by the program; or that makes it."""
        return self._last[value]

    def may_drop(self, value: int) -> bool:
        """Whether the value is an activation that its maker may make again."""
        return self._may_drop[value]

    def there(self, value: int, moment: int, dropped: Iterable[Gap]) -> bool:
        """Whether a value exists just before operator `moment`, given its dropped gaps."""
        if not self.maker[value] < moment <= self._until[value]:
            return False
        return all(moment <= start or moment > end for _, start, end in dropped)

    def chain(
        self, moment: int, targets: Iterable[int], dropped: Mapping[int, Collection[Gap]]
    ) -> Chain | None:
        """What recomputes `targets` before operator `moment`; None where it cannot be done.

        Args:
            dropped: gaps by value.
        """
        by_value = [dropped.get(value, ()) for value in range(len(self.maker))]
        found = self.quick_chain(moment, targets, by_value)
        if found is None:
            return None
        reads = {read for n in found.operators for read in self.graph.operators[n].reads}
        return Chain(
            tuple(found.operators),
            found.cost_us,
            found.extra_bytes,
            frozenset(read for read in reads if self.there(read, moment, by_value[read])),
        )

    def quick_chain(
        self, moment: int, targets: Iterable[int], dropped: Sequence[Collection[Gap]]
    ) -> QuickChain | None:
        """As `chain`, for many calls.

        Args:
            dropped: gaps, for each value.
        """
        maker, until, inputs, runs_until = self.maker, self._until, self.inputs, self._runs_until
        made_together = self._made_together
        wanted = set(targets)
        needed, touched, open_values = set(wanted), set(wanted), list(wanted)
        ran: set[int] = set()
        while open_values:
            number = maker[open_values.pop()]
            if number in ran:
                continue
            if moment > runs_until[number]:
                return None
            ran.add(number)
            for read in inputs[number]:
                if read in touched:
                    continue
                touched.add(read)
                if moment <= until[read]:
                    for _, start, end in dropped[read]:
                        if start < moment <= end:
                            break
                    else:
                        continue
                needed.add(read)
                open_values.append(read)
        for number in ran:
            touched.update(made_together[number])
        if len(ran) == 1:
            extra_bytes = self._made_bytes[number] + self._workspace[number]
            return QuickChain([number], ran, self.cost_us[number], extra_bytes, touched)
        operators = sorted(ran)
        return QuickChain(
            operators,
            ran,
            sum([self.cost_us[number] for number in operators]),
            self._extra_bytes(operators, needed, wanted),
            touched,
        )

    def missing_us(
        self,
        moment: int,
        value: int,
        dropped: Sequence[Collection[Gap]],
        ran: Container[int],
        seen: set[int],
        enough_us: float = math.inf,
    ) -> float:
        """Time of what must also be run before an operator to make one more value there.

        Args:
            dropped: gaps, for each value.
            ran: operators that are run again there anyway, with what they need.
            seen: is given the values looked at.
            enough_us: where it takes as much or more, part of the time will do.

        Returns:
            Infinity where it cannot be done.
        """
        maker, until, inputs, runs_until = self.maker, self._until, self.inputs, self._runs_until
        total_us, added, open_values = 0.0, set[int](), [value]
        while open_values:
            number = maker[open_values.pop()]
            if number in ran or number in added:
                continue
            if moment > runs_until[number]:
                return math.inf
            added.add(number)
            total_us += self.cost_us[number]
            if total_us >= enough_us:
                break
            for read in inputs[number]:
                seen.add(read)
                if moment <= until[read]:
                    for _, start, end in dropped[read]:
                        if start < moment <= end:
                            break
                    else:
                        continue
                open_values.append(read)
        return total_us

    def working_bytes(self, operator: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """What running an operator takes: bytes, and the values it writes over, with theirs."""
        return self._made_bytes[operator] + self._workspace[operator], self._bases[operator]

    def _extra_bytes(self, operators: list[int], needed: set[int], wanted: set[int]) -> int:
        """The most that running these takes, when what is needed no more goes at once."""
        size_bytes, inputs = self.size_bytes, self.inputs
        last_reader = {
            read: number for number in operators for read in inputs[number] if read in needed
        }
        held = most = 0
        for number in operators:
            made = self._made_bytes[number]
            for read, size in self._bases[number]:
                if read in needed:  # written over a version that was made again for it
                    made -= size
            most = max(most, held + made + self._workspace[number])
            for value, size in self._outputs[number]:
                if value in wanted or last_reader.get(value, -1) > number:
                    held += size
            for read in inputs[number]:
                if last_reader.get(read) == number and read not in wanted:
                    held -= size_bytes[read]
        return most


def _overwritten(graph: OpGraph, makers: Sequence[int]) -> list[int]:
    """Operator that writes the next version of each value's storage, having read this one."""
    found = [len(graph.operators)] * len(graph.values)
    current = {
        value.storage: number for number, value in enumerate(graph.values) if makers[number] < 0
    }
    for number, operator in enumerate(graph.operators):
        for value in operator.makes:
            storage = graph.values[value].storage
            if storage in current:
                found[current[storage]] = number
            current[storage] = value
    return found


def _bases(graph: OpGraph, number: int) -> tuple[tuple[int, int], ...]:
    """Values that an operator reads and writes over, with the bytes."""
    operator = graph.operators[number]
    written = Counter(graph.values[made].storage for made in operator.makes)
    return tuple(
        (read, written[storage] * graph.storages[storage].size_bytes)
        for read in operator.reads
        if (storage := graph.values[read].storage) in written
    )
