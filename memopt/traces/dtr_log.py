"""Traces as published with DTR (uwsampl/dtr-prototype, the logs of simrd), read as an `OpGraph`.

One instruction a line, names instead of numbers, one iteration:

    ANNOTATE            START: what was before it does not count; BACKWARD: the backward pass begins
    CONSTANT, MEMORY    a tensor that rests in memory (weights, inputs, scalars), and its bytes
    CALL                an operator with a time in ns; then for each result MEMORY and ALIAS, which
                        gives the position of the argument it is a view of, or -1
    MUTATE              an operator that writes to some of its arguments, by position
    COPY, COPY_FROM     another name for a tensor (not a copy of its bytes); with _FROM, the name
                        had one before
    RELEASE             a name is given up; the last name of a storage gives up its memory

A view shares its storage, and a mutation is a new version of it, seen through every name, as in
PyTorch. (simrd copies before it writes, so that its peaks are higher where operators work in
place.) A storage that still has a name at the end is a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.traces.lines import Line

_US_PER_NS = 1e-3


@dataclass
class _Import:
    """What has been read so far."""

    sizes_bytes: list[int] = field(default_factory=list)
    is_constant: list[bool] = field(default_factory=list)
    last_use: list[int | None] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    current: list[int] = field(default_factory=list)
    """Of each storage, number of its newest value."""
    num_names: list[int] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    storage_of_name: dict[str, int] = field(default_factory=dict)
    backward: bool = False

    def add_storage(self, size_bytes: int, *, is_constant: bool) -> int:
        storage = len(self.sizes_bytes)
        self.sizes_bytes.append(size_bytes)
        self.is_constant.append(is_constant)
        self.last_use.append(None)
        self.num_names.append(0)
        self.values.append(Value(storage))
        self.current.append(len(self.values) - 1)
        return storage

    def add_version(self, storage: int) -> int:
        before = self.values[self.current[storage]]
        self.values.append(Value(storage, before.version + 1))
        self.current[storage] = len(self.values) - 1
        return self.current[storage]

    def name(self, line: Line, name: str, storage: int) -> None:
        if name in self.storage_of_name:
            raise line.wrong(f"tensor {name!r} is there already")
        self.storage_of_name[name] = storage
        self.num_names[storage] += 1

    def give_up(self, name: str) -> None:
        storage = self.storage_of_name.pop(name)
        self.num_names[storage] -= 1
        if not self.num_names[storage] and not self.is_constant[storage]:
            self.last_use[storage] = len(self.operators) - 1

    def storage(self, line: Line, name: str) -> int:
        if name not in self.storage_of_name:
            raise line.wrong(f"tensor {name!r} is not there, or released")
        return self.storage_of_name[name]

    def graph(self) -> OpGraph:
        storages = []
        for size, constant, last_use in zip(
            self.sizes_bytes, self.is_constant, self.last_use, strict=True
        ):
            held = Role.RESULT if last_use is None else Role.ACTIVATION
            storages.append(Storage(size, Role.RESTING if constant else held))
        end = len(self.operators)
        return OpGraph(
            storages=tuple(storages),
            values=tuple(self.values),
            operators=tuple(self.operators),
            last_use=tuple(end if last is None else last for last in self.last_use),
        )


def read_dtr_log(lines: Iterator[Line]) -> OpGraph:
    """The iteration in `lines`, times in microseconds.

    Raises:
        MemoptError: an unknown instruction, a tensor that is not there, a cut file.
    """
    found = _Import()
    for line in lines:
        instruction = line.text("INSTRUCTION")
        if instruction == "CONSTANT":
            name = line.text("NAME")
            size_bytes = _memory(line, lines, name)
            found.name(line, name, found.add_storage(size_bytes, is_constant=True))
        elif instruction == "CALL":
            _call(found, line, lines)
        elif instruction == "MUTATE":
            _mutate(found, line)
        elif instruction == "COPY":
            found.name(line, line.text("DST"), found.storage(line, line.text("SRC")))
        elif instruction == "COPY_FROM":
            source, target = found.storage(line, line.text("SRC")), line.text("DST")
            found.storage(line, target)
            found.num_names[source] += 1  # first, should both be one storage
            found.give_up(target)
            found.storage_of_name[target] = source
        elif instruction == "RELEASE":
            # Names from before START are released too.
            if (name := line.text("NAME")) in found.storage_of_name:
                found.give_up(name)
        elif instruction == "ANNOTATE":
            annotation = line.text("ANNOTATION")
            if annotation == "START":
                found = _Import()
            elif annotation == "BACKWARD":
                found.backward = True
            elif annotation == "FORWARD":
                found.backward = False
            else:
                raise line.wrong(f"annotation {annotation!r}; known: START, FORWARD, BACKWARD")
        else:
            raise line.wrong(
                f"instruction {instruction!r}; known: ANNOTATE, CALL, CONSTANT, COPY, COPY_FROM, "
                "MUTATE, RELEASE"
            )
    return found.graph()


def _call(found: _Import, line: Line, lines: Iterator[Line]) -> None:
    arguments = [found.storage(line, name) for name in line.texts("ARGS")]
    reads = _each_once(found.current[storage] for storage in arguments)
    makes: list[int] = []
    named: list[tuple[str, int]] = []
    for name in line.texts("RESULT"):
        size_bytes = _memory(line, lines, name)
        follower = _follower(line, lines, "ALIAS", name)
        position = _decimal(follower, "ALIAS", at_least=-1)
        if position >= len(arguments):
            raise follower.wrong(f"a view of argument {position} of {len(arguments)}")
        if position < 0:
            storage = found.add_storage(size_bytes, is_constant=False)
            makes.append(found.current[storage])
        else:
            storage = arguments[position]
        named.append((name, storage))
    _add_operator(found, line, reads, tuple(makes), Replay.PURE)
    for name, storage in named:
        found.name(line, name, storage)


def _mutate(found: _Import, line: Line) -> None:
    arguments = [found.storage(line, name) for name in line.texts("ARGS")]
    reads = _each_once(found.current[storage] for storage in arguments)
    positions = line.wholes("MUTATE")
    if any(position >= len(arguments) for position in positions):
        raise line.wrong(f"writes to arguments {list(positions)} of {len(arguments)}")
    written = _each_once(arguments[position] for position in positions)
    makes = tuple(found.add_version(storage) for storage in written)
    outside = any(found.is_constant[storage] for storage in written)
    _add_operator(found, line, reads, makes, Replay.NEVER if outside else Replay.PURE)


def _add_operator(
    found: _Import, line: Line, reads: tuple[int, ...], makes: tuple[int, ...], replay: Replay
) -> None:
    cost_us = _decimal(line, "TIME", at_least=0) * _US_PER_NS
    operator = Operator(line.text("NAME"), reads, makes, cost_us, replay, found.backward)
    found.operators.append(operator)


def _memory(line: Line, lines: Iterator[Line], name: str) -> int:
    return _decimal(_follower(line, lines, "MEMORY", name), "MEMORY", at_least=0)


def _follower(line: Line, lines: Iterator[Line], instruction: str, name: str) -> Line:
    follower = next(lines, None)
    if follower is None:
        raise MemoptError(
            f"{line.path}:{line.number}: the file is cut: {instruction} of {name!r} is missing"
        )
    if follower.fields.get("INSTRUCTION") != instruction or follower.text("NAME") != name:
        raise follower.wrong(f"expected {instruction} of {name!r}, as line {line.number} makes it")
    return follower


def _decimal(line: Line, name: str, at_least: int) -> int:
    """Numbers are written as texts."""
    text = line.text(name)
    try:
        number = int(text)
    except ValueError:
        number = at_least - 1
    if number < at_least:
        raise line.wrong(f"{name!r} must be a whole number of at least {at_least}, not {text!r}")
    return number


def _each_once(numbers: Iterator[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
