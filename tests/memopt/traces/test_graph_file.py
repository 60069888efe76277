"""memopt's own trace files: what is written is read back, what is wrong is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.traces import read_trace, write_graph

GRAPH = OpGraph(
    storages=(
        Storage(64, Role.RESTING),
        Storage(1024),
        Storage(0),
        Storage(256, Role.RESULT),
    ),
    values=(Value(0), Value(1), Value(1, 1), Value(2), Value(3)),
    operators=(
        Operator("convolution", (0,), (1, 3), 12.5, workspace_bytes=77),
        Operator("dropout_", (1,), (2,), 3.0, Replay.RANDOM),
        Operator("all_reduce", (2,), (4,), 0.25, Replay.NEVER, backward=True),
    ),
    last_use=(3, 2, -1, 3),
    saved=(2, 1),
    held_until=(-1, 1, -1, -1),
    unpacks=(2,),
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "step.jsonl"
    write_graph(GRAPH, path)
    return path


@pytest.mark.parametrize("name", ["step.jsonl", "step.jsonl.gz"])
def test_a_graph_is_read_back_equal(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_graph(GRAPH, path)
    assert read_trace(path) == GRAPH
    assert list(tmp_path.iterdir()) == [path]


def test_the_sample_of_the_readme_is_a_trace(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "memopt" / "README.md"
    sample = readme.read_text(encoding="utf-8").split("```jsonl\n")[1].split("```")[0]
    path = tmp_path / "sample.jsonl"
    path.write_text(sample, encoding="utf-8")
    graph = read_trace(path)
    write_graph(graph, path)
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == [json.loads(line) for line in sample.splitlines()]


def test_every_cut_at_a_line_is_named(written: Path) -> None:
    lines = written.read_text(encoding="utf-8").splitlines(keepends=True)
    for kept in range(1, len(lines)):
        written.write_text("".join(lines[:kept]), encoding="utf-8")
        with pytest.raises(MemoptError, match=rf"step\.jsonl:{kept + 1}: the file is cut"):
            read_trace(written)


def test_a_cut_inside_a_line_is_named(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    written.write_text(text[: text.index("dropout_") + 3], encoding="utf-8")
    with pytest.raises(MemoptError, match=r"step\.jsonl:12: .*the file ends inside it"):
        read_trace(written)


def test_cut_gzip_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step.gz"
    write_graph(GRAPH, path)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(MemoptError, match=r"step\.gz:\d+: the gzip data is cut"):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (1, {"version": 1}, "version 1 of memopt-graph: this memopt reads version 2"),
        (1, {"values": -1}, "'values' must be a whole number of at least 0, not -1"),
        (1, {"operators": 2}, "no field 'saved'"),
        (2, {"role": "scratch"}, "'role' is 'scratch'; known: resting, activation, result"),
        (3, {"size_bytes": 1.5}, "'size_bytes' must be a whole number"),
        (3, {"size_bytes": True}, "'size_bytes' must be a whole number"),
        (6, {"storage": "0"}, "'storage' must be a whole number"),
        (11, {"reads": [9]}, "'reads' has value 9, and there are 5"),
        (11, {"reads": 0}, "'reads' must be a list"),
        (11, {"cost_us": float("nan")}, "'cost_us' must be a number of at least 0"),
        (12, {"backward": 1}, "'backward' must be true or false"),
        (12, {"name": None}, "'name' must be a text"),
        (14, {"saved": [-1]}, "'saved' must be a whole number of at least 0"),
    ],
)
def test_a_wrong_line_is_named(
    written: Path, line: int, change: dict[str, Any], message: str
) -> None:
    lines = written.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = json.dumps({**json.loads(lines[line - 1]), **change})
    written.write_text("\n".join(lines), encoding="utf-8")
    where = 13 if "saved" in message and line == 1 else line
    with pytest.raises(MemoptError) as raised:
        read_trace(written)
    assert str(raised.value).startswith(f"{written}:{where}: {message}")
    assert "\n" not in str(raised.value)


def test_a_graph_that_cannot_be_names_file_and_operator(written: Path) -> None:
    text = written.read_text(encoding="utf-8").replace('"reads": [2]', '"reads": [1]')
    written.write_text(text, encoding="utf-8")
    with pytest.raises(MemoptError, match=r"step\.jsonl: .*operator 2 \(all_reduce\) reads"):
        read_trace(written)


def test_a_line_too_many_is_named(written: Path) -> None:
    with written.open("a", encoding="utf-8") as file:
        file.write("{}\n")
    with pytest.raises(MemoptError, match=r"step\.jsonl:15: a line after the last"):
        read_trace(written)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_text("[1]\n"), "1: the line is not a JSON object"),
        (lambda path: path.write_text("hello\n"), "1: the line is not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00\n"), "1: not UTF-8 text"),
        (lambda path: path.write_bytes(gzip.compress(b"{}\n")[:12]), "1: the gzip data is cut"),
        (lambda path: path.write_text('{"format": "other"}\n'), "1: neither a memopt trace"),
    ],
)
def test_what_is_no_trace_is_one_line(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(MemoptError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MemoptError, match="cannot be written: No such file"):
        write_graph(GRAPH, tmp_path / "absent" / "x.jsonl")
