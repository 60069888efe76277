"""`python -m memopt`: what it prints, and one line for bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memopt.__main__ import main
from memopt.commands.budgets import budget_bytes
from memopt.errors import MemoptError
from memopt.graph import Operator, OpGraph, Role, Storage, Value
from memopt.tables import table
from memopt.traces import write_graph

KIB = 1024


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three activations of 1 KiB, read again in reverse; their plain peak is 4 KiB."""
    forward = [Operator(f"f{n}", (n,), (n + 1,), 100.0) for n in range(3)]
    backward = [
        Operator("b", (3,), (4,), 100.0, backward=True),
        Operator("b", (2, 4), (5,), 100.0, backward=True),
        Operator("b", (1, 5), (6,), 100.0, backward=True),
    ]
    graph = OpGraph(
        (Storage(7, Role.RESTING), *[Storage(KIB)] * 5, Storage(KIB, Role.RESULT)),
        tuple(Value(n) for n in range(7)),
        (*forward, *backward),
        (6, 5, 4, 3, 4, 5, 6),
    )
    path = tmp_path / "net.jsonl"
    write_graph(graph, path)
    return path


def test_replay_prints_overhead_by_policy_and_budget(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), "--budget", "1", "3KiB", "0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "net.jsonl: 6 operators, plain peak 4.0KiB, 0.6 ms"
    assert lines[1].split() == ["budget", "dtr", "dtr_eq", "dte", "coop"]
    assert lines[2].split() == ["4.0KiB", "(100%)", *["0.0%"] * 4]
    assert lines[3].split() == ["3.0KiB", "(75%)", *["16.7%"] * 4]
    assert lines[4].split("  ")[0] == "1.2KiB (30%)"
    assert lines[4].count("out of memory") == 4


def test_replay_takes_policies_arena_and_limit(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--policies", "coop", "--arena", "cuda", "--budget", "2MiB", "1MiB"]
    assert main(["replay", str(trace), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["budget", "coop"]
    # The smallest segment has 2 MiB.
    assert lines[2].endswith("0.0%")
    assert lines[3].endswith("out of memory")
    options = ["--policies", "dtr", "--thrash-limit", "0.1", "--budget", "3KiB"]
    assert main(["replay", str(trace), *options]) == 0
    assert "thrashing" in capsys.readouterr().out


def test_plan_prints_overhead_by_planner_and_budget(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planners = ["--planners", "offline", "sublinear", "ilp"]
    assert main(["plan", str(trace), "--budget", "1", "3KiB", "0.3", *planners]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "net.jsonl: 6 operators, plain peak 4.0KiB, 0.6 ms"
    assert lines[1].split() == ["budget", "offline", "sublinear", "ilp"]
    assert lines[2].split() == ["4.0KiB", "(100%)", *["0.0%,", "1.00"] * 3]
    assert lines[3].split()[:4] == ["3.0KiB", "(75%)", "16.7%,", "1.00"]
    assert lines[3].endswith("16.7%, 1.00")
    assert lines[4].count("least") == 3


def test_show_prints_what_is_in_a_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "operators         6, 3 of them backward, 0.6 ms" in text
    assert "plain peak        4.0KiB, at operator 3 (b)" in text
    assert "4.0KiB planned (1.000 of what is alive), 2.0MiB in PyTorch's CUDA" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["resting", "1", "7B"] in rows
    assert ["activation", "5", "5.0KiB"] in rows
    assert ["b", "1.0KiB", "5", "to", "5", "result"] in rows
    assert ["b", "3", "0.3", "ms"] in rows


def test_show_draws_memory(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    assert main(["show", str(trace), "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_show_of_an_empty_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.jsonl"
    write_graph(OpGraph((), (), (), ()), path)
    assert main(["show", str(path), "--png", str(tmp_path / "memory.png")]) == 0
    assert "plain peak        0B" in capsys.readouterr().out
    assert main(["replay", str(path)]) == 2
    assert "nothing that takes memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "TRACE", "--budget", "half"], "memory size 'half' cannot be read"),
        (["replay", "TRACE", "--budget", "-1"], "budget '-1' must be a share"),
        (["replay", "TRACE", "--budget", "nan"], "budget 'nan' must be a share"),
        (["replay", "TRACE", "--budget", "0"], "budget '0' must be a share"),
        (["replay", "TRACE", "--policies", "lru"], "policy 'lru' is not known; known: dtr"),
        (["replay", "TRACE", "--thrash-limit", "0"], "--thrash-limit 0.0 must be above 0"),
        (["replay", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["show", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["show", "TRACE", "--png", "absent/x.png"], "absent/x.png: cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    arguments = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_an_unknown_command_is_refused_by_the_interpreter(trace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memopt", "draw", str(trace)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 2
    assert "draw" in done.stderr


def test_a_bare_number_is_a_share_of_the_peak() -> None:
    graph = OpGraph((Storage(1000),), (Value(0),), (Operator("f", (), (0,), 1.0),), (1,))
    assert budget_bytes(graph, "0.25") == 250
    assert budget_bytes(graph, "2") == 2000
    assert budget_bytes(graph, "100B") == 100
    with pytest.raises(MemoptError):
        budget_bytes(graph, "0.0001")


def test_a_table_aligns_its_columns() -> None:
    assert table(["a", "bcd"], [["long", "1"], ["x", "22"]]).splitlines() == [
        "a     bcd",
        "long    1",
        "x      22",
    ]
