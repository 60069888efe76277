"""Memory whose contents are symbols: checks a replay independently of how it is done.

A content is a number that stands for an operator and the contents it read. What a value should
hold is what it got when its maker first ran, on inputs that were themselves right.
"""

from __future__ import annotations

import random
from collections import Counter

from memopt.arena import Block
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.replay import Outcome, ReplayResult


class SymbolicMemory:
    """An observer of replays that fails on the first wrong content or overlap."""

    def __init__(self, graph: OpGraph, capacity_bytes: int) -> None:
        self.graph = graph
        self.capacity_bytes = capacity_bytes
        self.symbols: dict[object, int] = {}
        self.right: dict[int, int] = {}
        self.memory: dict[int, tuple[int, int, int]] = {}  # offset -> size, storage, content
        self.resting: dict[int, int] = {}
        self.runs: list[int] = []
        self.first_runs: list[int] = []
        self.peak_bytes = 0
        made = {value for operator in graph.operators for value in operator.makes}
        for number, value in enumerate(graph.values):
            if number not in made:
                self.resting[value.storage] = self.right[number] = self.symbol(("rest", number))

    def symbol(self, meaning: object) -> int:
        return self.symbols.setdefault(meaning, len(self.symbols))

    def ran(self, operator: int, reads: dict[int, Block], writes: dict[int, Block]) -> None:
        found = self.graph.operators[operator]
        contents = []
        for read in found.reads:
            storage = self.graph.values[read].storage
            size_bytes = self.graph.storages[storage].size_bytes
            if storage in self.resting:
                content = self.resting[storage]
            elif size_bytes:
                block = reads[read]
                length, owner, content = self.memory[block.offset_bytes]
                assert length == size_bytes <= block.size_bytes
                assert owner == storage
            else:
                content = self.right[read]
            assert content == self.right[read], f"{found.name} reads a wrong value {read}"
            contents.append(content)
        first = operator == len(self.first_runs)
        if first:
            self.first_runs.append(operator)
        self.runs.append(operator)
        in_place = {block.offset_bytes for block in reads.values()}
        if first:  # may overwrite what it does not read
            in_place.update(self.memory)
        for place, made in enumerate(found.makes):
            storage = self.graph.values[made].storage
            size_bytes = self.graph.storages[storage].size_bytes
            content = self.symbol((operator, place, tuple(contents)))
            if first:
                self.right[made] = content
            assert content == self.right[made]
            if self.graph.storages[storage].role is Role.RESTING:
                self.resting[storage] = content
            elif size_bytes:
                block = writes[made]
                self.write(block, size_bytes, storage, content, in_place)
        alive = sum(length for length, _, _ in self.memory.values())
        self.peak_bytes = max(self.peak_bytes, alive + found.workspace_bytes)

    def write(
        self, block: Block, size_bytes: int, storage: int, content: int, in_place: set[int]
    ) -> None:
        start, end = block.offset_bytes, block.offset_bytes + size_bytes
        assert 0 <= start < end <= self.capacity_bytes
        for offset, (length, owner, _) in self.memory.items():
            if offset == start and owner == storage and offset in in_place:
                continue
            assert end <= offset or offset + length <= start, "blocks overlap"
        self.memory[start] = (size_bytes, storage, content)

    def freed(self, block: Block) -> None:
        del self.memory[block.offset_bytes]

    def check_end(self, result: ReplayResult) -> None:
        """What is left and counted when the replay has ended well."""
        graph = self.graph
        assert result.outcome is Outcome.DONE
        assert self.first_runs == list(range(len(graph.operators)))
        counts = Counter(self.runs)
        assert all(
            counts[number] == 1
            for number, operator in enumerate(graph.operators)
            if operator.replay is Replay.NEVER
        )
        again = sum((counts[n] - 1) * o.cost_us for n, o in enumerate(graph.operators))
        assert abs(result.recompute_us - again) <= 1e-9 * max(1.0, again)
        assert result.num_recomputes == len(self.runs) - len(graph.operators)
        assert self.peak_bytes <= result.peak_bytes <= result.high_water_bytes
        assert result.high_water_bytes <= self.capacity_bytes
        newest = {}
        for operator in graph.operators:
            newest.update({graph.values[made].storage: made for made in operator.makes})
        held = {
            storage: self.right[value]
            for storage, value in newest.items()
            if graph.storages[storage].role is not Role.RESTING
            and graph.storages[storage].size_bytes
            and graph.last_use[storage] >= len(graph.operators)
        }
        there = {owner: content for _, owner, content in self.memory.values()}
        assert all(there.get(s, held[s]) == held[s] for s in held)
        assert set(there) <= set(held)
        assert {s for s in held if graph.storages[s].role is Role.RESULT} <= set(there)


def random_graph(seed: int, num_operators: int = 20) -> OpGraph:
    """A small program: views, writes in place, weights stepped, collectives, results, workspace."""
    draw = random.Random(seed)
    storages = [Storage(draw.randint(1, 9), Role.RESTING) for _ in range(2)]
    values = [Value(0), Value(1)]
    current = {0: 0, 1: 1}
    last_use = {0: num_operators, 1: num_operators}
    alive = [0, 1]
    operators = []
    for number in range(num_operators):
        reads = draw.sample(alive, min(len(alive), draw.randint(1, 3)))
        makes = []
        replay = Replay.PURE
        kind = draw.random()
        own = [storage for storage in reads if storage > 1]
        if kind < 0.25 and own:  # in place, at times without reading what it overwrites
            target = draw.choice(own)
            if draw.random() < 0.2 and len(reads) > 1:
                reads.remove(target)
                last_use[target] = max(last_use[target], number)
            makes.append(target)
        elif kind < 0.26:
            makes.append(draw.choice([0, 1]))
            replay = Replay.NEVER
        elif kind < 0.29:
            replay = Replay.NEVER
        elif kind < 0.4:
            replay = Replay.RANDOM
        if kind >= 0.26 or (kind < 0.25 and draw.random() < 0.2):
            for _ in range(draw.choice([0, 1, 1, 1, 1, 2])):
                role = Role.RESULT if draw.random() < 0.05 else Role.ACTIVATION
                storages.append(Storage(draw.choice([0, 1, 2, 3, 4, 6, 8]), role))
                makes.append(len(storages) - 1)
        read_values = tuple(current[storage] for storage in reads)
        for storage in reads:
            last_use[storage] = max(last_use[storage], number)
        made_values = []
        for storage in makes:
            version = values[current[storage]].version + 1 if storage in current else 0
            values.append(Value(storage, version))
            current[storage] = len(values) - 1
            made_values.append(len(values) - 1)
            last_use[storage] = max(last_use.get(storage, -1), number)
            if storage not in alive:
                alive.append(storage)
        operators.append(
            Operator(
                f"op{number}",
                read_values,
                tuple(made_values),
                float(draw.randint(0, 9)),
                replay,
                workspace_bytes=draw.choice([0, 0, 0, 3]),
            )
        )
        for storage in list(alive):
            if storage > 1 and draw.random() < 0.05:
                alive.remove(storage)
    for storage, kept in enumerate(storages):
        if kept.role is Role.RESULT:
            last_use[storage] = num_operators
    return OpGraph(
        tuple(storages),
        tuple(values),
        tuple(operators),
        tuple(last_use[storage] for storage in range(len(storages))),
    )
