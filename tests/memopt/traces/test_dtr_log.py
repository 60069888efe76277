"""Traces in DTR's published format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Replay, Role, Storage, Value
from memopt.traces import read_trace


def constant(name: str, size_bytes: int) -> list[dict[str, object]]:
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size_bytes)},
    ]


def call(
    name: str, args: list[str], results: dict[str, tuple[int, int]], time_ns: int
) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = [
        {
            "INSTRUCTION": "CALL",
            "NAME": name,
            "ARGS": args,
            "RESULT": list(results),
            "TIME": str(time_ns),
        }
    ]
    for result, (size_bytes, alias) in results.items():
        lines.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size_bytes)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": str(alias)})
    return lines


def mutate(name: str, args: list[str], positions: list[int], time_ns: int) -> dict[str, object]:
    return {
        "INSTRUCTION": "MUTATE",
        "NAME": name,
        "ARGS": args,
        "MUTATE": positions,
        "TIME": str(time_ns),
    }


def release(name: str) -> dict[str, object]:
    return {"INSTRUCTION": "RELEASE", "NAME": name}


def copy(target: str, source: str, *, again: bool = False) -> dict[str, object]:
    return {"INSTRUCTION": "COPY_FROM" if again else "COPY", "DST": target, "SRC": source}


def annotate(text: str) -> dict[str, object]:
    return {"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}


def save(tmp_path: Path, lines: list[dict[str, object]]) -> Path:
    path = tmp_path / "net.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_views_share_mutations_version_and_the_last_name_drops(tmp_path: Path) -> None:
    lines = [
        *constant("old", 8),
        annotate("START"),
        *constant("weight", 100),
        release("before_start"),
        *call("conv", ["weight"], {"a": (40, -1), "extra": (4, -1)}, 2000),
        release("extra"),
        copy("a2", "a"),
        release("a"),
        *call("view", ["a2"], {"v": (40, 0)}, 500),
        mutate("relu_", ["a2"], [0], 1000),
        release("a2"),
        annotate("BACKWARD"),
        *call("grad", ["v", "weight"], {"g": (100, -1)}, 3000),
        release("v"),
        *call("other", ["g"], {"h": (8, -1)}, 250),
        copy("h", "g", again=True),
        release("g"),
        mutate("step_", ["weight", "h", "weight"], [0, 2], 100),
    ]
    assert read_trace(save(tmp_path, lines)) == OpGraph(
        storages=(
            Storage(100, Role.RESTING),
            Storage(40),
            Storage(4),
            Storage(100, Role.RESULT),
            Storage(8),
        ),
        values=(Value(0), Value(1), Value(2), Value(1, 1), Value(3), Value(4), Value(0, 1)),
        operators=(
            Operator("conv", (0,), (1, 2), 2.0),
            Operator("view", (1,), (), 0.5),
            Operator("relu_", (1,), (3,), 1.0),
            Operator("grad", (3, 0), (4,), 3.0, backward=True),
            Operator("other", (4,), (5,), 0.25, backward=True),
            Operator("step_", (0, 4), (6,), 0.1, Replay.NEVER, backward=True),
        ),
        last_use=(6, 3, 0, 6, 4),
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"INSTRUCTION": "JUMP"}], "1: instruction 'JUMP'; known: ANNOTATE, CALL"),
        ([annotate("PAUSE")], "1: annotation 'PAUSE'; known: START"),
        ([copy("b", "a")], "1: tensor 'a' is not there, or released"),
        (call("f", ["a"], {}, 1), "1: tensor 'a' is not there, or released"),
        ([*constant("a", 1), release("a"), copy("b", "a")], "4: tensor 'a' is not there"),
        ([*constant("a", 1), *constant("a", 1)], "3: tensor 'a' is there already"),
        (constant("a", 1)[:1], "1: the file is cut: MEMORY of 'a' is missing"),
        (call("f", [], {"r": (1, -1)}, 1)[:2], "1: the file is cut: ALIAS of 'r' is missing"),
        ([constant("a", 1)[0], release("a")], "2: expected MEMORY of 'a', as line 1 makes it"),
        (call("f", [], {"r": (1, 0)}, 1), "3: a view of argument 0 of 0"),
        (constant("a", -1), "2: 'MEMORY' must be a whole number of at least 0, not '-1'"),
        (call("f", [], {}, -1), "1: 'TIME' must be a whole number of at least 0, not '-1'"),
        ([*constant("a", 1), mutate("m", ["a"], [1], 1)], "3: writes to arguments [1] of 1"),
        ([{"INSTRUCTION": "RELEASE"}], "1: no field 'NAME'"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, lines: list[dict[str, object]], message: str
) -> None:
    path = save(tmp_path, lines)
    with pytest.raises(MemoptError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:{message}")


def test_the_published_traces_are_read(shared_data: Path) -> None:
    """Operators counted in the files with grep; peaks as memopt counts, constants apart."""
    found = {}
    for path in sorted((shared_data / "dtr_traces").glob("*.gz")):
        graph = read_trace(path)
        assert any(operator.backward for operator in graph.operators)
        found[path.name.split("-")[0]] = (len(graph.operators), graph.plain_peak_bytes() // 10**6)
    assert found == {
        "inceptionv4": (1109 + 149, 11005),
        "resnet32": (286, 10025),
        "transformer": (2731 + 90, 9601),
        "tv_densenet121": (1951 + 121, 10937),
        "unet": (210 + 37, 8322),
    }
