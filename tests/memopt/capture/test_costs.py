from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from memopt.capture import Call, CostTable, record
from memopt.capture.costs import real_arguments
from memopt.capture.operators import facts
from memopt.capture.recording import TensorView
from memopt.errors import MemoptError
from memopt.graph import Replay
from tests.memopt.capture import steps


def calls_of(build: object = steps.conv_net) -> tuple[Call, ...]:
    step, resting = build()  # type: ignore[operator]
    calls = record(step, resting=resting, calls=True).calls
    assert calls is not None
    return calls


def test_every_kind_of_operator_can_be_timed_and_each_call_once() -> None:
    table = CostTable()
    calls = [call for build in steps.STEPS for call in calls_of(build)]
    costs = [table.cost_us(call) for call in calls]
    assert len(table) < len(calls) / 2
    assert all(cost >= 0 for cost in costs)
    assert costs == [table.cost_us(call) for call in calls]  # measured anew they would differ


def test_larger_operators_cost_more() -> None:
    table = CostTable()

    def cost_us(size: int) -> float:
        weight = torch.ones(size, size, requires_grad=True)
        calls = record(lambda: (weight @ weight).sum().backward(), calls=True).calls
        assert calls is not None
        return max(table.cost_us(call) for call in calls)

    assert cost_us(512) > 3 * cost_us(64)


def test_table_is_saved_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    table = CostTable(path)
    calls = calls_of()
    costs = [table.cost_us(call) for call in calls]
    table.save()
    again = CostTable(path)
    assert len(again) == len(table) > 0
    assert [again.cost_us(call) for call in calls] == costs
    assert [file.name for file in tmp_path.iterdir()] == ["costs.json"]


def test_times_of_another_environment_are_kept_and_not_used(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    table = CostTable(path)
    calls = calls_of(steps.mlp)
    for call in calls:
        table.cost_us(call)
    table.save()
    content = json.loads(path.read_text())
    content["us"] = {"torch 1.0": dict.fromkeys(next(iter(content["us"].values())), 1e9)}
    path.write_text(json.dumps(content))
    elsewhere = CostTable(path)
    assert all(elsewhere.cost_us(call) < 1e9 for call in calls)
    assert len(elsewhere) == 2 * len(table)


def test_timing_leaves_the_generator_alone() -> None:
    calls = calls_of(steps.dropout)
    before = torch.get_rng_state()
    table = CostTable()
    assert any(table.cost_us(c) > 0 for c in calls if facts(c.function).replay is Replay.RANDOM)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "memopt-costs", "version": 2, "us": {}}']
)
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(MemoptError, match=r"costs\.json is not a cost table"):
        CostTable(path)


def test_table_without_a_path_cannot_be_saved() -> None:
    with pytest.raises(MemoptError, match="no path"):
        CostTable().save()


def test_operators_are_timed_on_numbers_of_both_signs() -> None:
    """All of one sign, a processor guesses every branch of PReLU's backward pass right."""
    view = TensorView(0, (300, 400), (400, 1), 0, torch.float32, torch.device("cpu"))
    made = real_arguments(view)
    assert made.shape == (300, 400)
    assert 0.4 < (made > 0).float().mean() < 0.6
    indices = TensorView(0, (5,), (1,), 0, torch.int64, torch.device("cpu"))
    assert real_arguments((indices, {"n": 3}))[0].tolist() == [0] * 5
