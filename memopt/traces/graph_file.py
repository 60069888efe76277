"""An `OpGraph` as a file of JSON lines; README.md, "Traces", has the specification and a sample.

The header counts what follows, and the last line is the list of saved values, so that a file cut
anywhere is told from a whole one.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.traces.lines import Line

FORMAT = "memopt-graph"
VERSION = 2

_KINDS = ("storages", "values", "operators")
_Member = TypeVar("_Member", bound=Enum)


def write_graph(graph: OpGraph, path: Path) -> None:
    """Writes the file, gzip where the name ends in .gz; an older one stays whole until then.

    Raises:
        MemoptError: the file cannot be written.
    """
    text = "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in _lines(graph))
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MemoptError(f"{path}: cannot be written: {error.strerror or error}") from error


def _lines(graph: OpGraph) -> Iterator[dict[str, Any]]:
    counts = {kind: len(getattr(graph, kind)) for kind in _KINDS}
    yield {"format": FORMAT, "version": VERSION, **counts}
    held_until = graph.held_until or (-1,) * len(graph.storages)
    for storage, last_use, held in zip(graph.storages, graph.last_use, held_until, strict=True):
        yield {
            "size_bytes": storage.size_bytes,
            "role": storage.role.value,
            "last_use": last_use,
            "held_until": held,
        }
    for value in graph.values:
        yield {"storage": value.storage, "version": value.version}
    for operator in graph.operators:
        yield {
            "name": operator.name,
            "reads": operator.reads,
            "makes": operator.makes,
            "cost_us": operator.cost_us,
            "replay": operator.replay.value,
            "backward": operator.backward,
            "workspace_bytes": operator.workspace_bytes,
        }
    yield {"saved": graph.saved, "unpacks": graph.unpacks}


def read_graph(header: Line, lines: Iterator[Line]) -> OpGraph:
    """The graph of a file whose first line is `header` and whose others are `lines`.

    Raises:
        MemoptError: another version, a cut file, a wrong line, an impossible graph.
    """
    if (version := header.field("version")) != VERSION:
        raise header.wrong(f"version {version!r} of {FORMAT}: this memopt reads version {VERSION}")
    counts = {kind: header.whole(kind) for kind in _KINDS}
    lines = _until_the_count(header, lines, total=sum(counts.values()) + 1)
    storages, last_use, held_until = [], [], []
    for _ in range(counts["storages"]):
        line = next(lines)
        storages.append(Storage(line.whole("size_bytes"), _member(line, "role", Role)))
        last_use.append(line.whole("last_use", at_least=-1))
        held_until.append(line.whole("held_until", at_least=-1))
    values = [_value(next(lines)) for _ in range(counts["values"])]
    operators = [_operator(next(lines), len(values)) for _ in range(counts["operators"])]
    end = next(lines)
    saved = _numbers_below(end, "saved", len(values))
    unpacks = end.wholes("unpacks")
    if extra := next(lines, None):
        raise extra.wrong("a line after the last that the header counts")
    try:
        return OpGraph(
            tuple(storages),
            tuple(values),
            tuple(operators),
            tuple(last_use),
            saved,
            tuple(held_until) if max(held_until, default=-1) >= 0 else (),
            unpacks,
        )
    except MemoptError as error:
        raise MemoptError(f"{header.path}: {error}") from error


def _until_the_count(header: Line, lines: Iterator[Line], total: int) -> Iterator[Line]:
    found, number = 0, header.number
    for line in lines:
        found, number = found + 1, line.number
        yield line
    if found < total:
        raise MemoptError(
            f"{header.path}:{number + 1}: the file is cut: the header counts {total} lines "
            f"after it, there are {found}"
        )


def _value(line: Line) -> Value:
    return Value(line.whole("storage"), line.whole("version"))


def _operator(line: Line, num_values: int) -> Operator:
    return Operator(
        name=line.text("name"),
        reads=_numbers_below(line, "reads", num_values),
        makes=_numbers_below(line, "makes", num_values),
        cost_us=line.number_at_least_0("cost_us"),
        replay=_member(line, "replay", Replay),
        backward=line.flag("backward"),
        workspace_bytes=line.whole("workspace_bytes"),
    )


def _numbers_below(line: Line, name: str, num_values: int) -> tuple[int, ...]:
    found = line.wholes(name)
    for number in found:
        if number >= num_values:
            raise line.wrong(f"{name!r} has value {number}, and there are {num_values}")
    return found


def _member(line: Line, name: str, kind: type[_Member]) -> _Member:
    text = line.text(name)
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise line.wrong(f"{name!r} is {text!r}; known: {known}") from None
