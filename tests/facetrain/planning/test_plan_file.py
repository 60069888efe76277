"""plan.json: what is written is read, and what is no plan is told in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facetrain.errors import FacetrainError
from facetrain.planning.page import strategy_table, write_plan_page
from facetrain.planning.plan_file import PLAN_FILE, plan_content, read_plan, settings_of, write_plan
from facetrain.planning.step import StepPlan
from memopt.partition.search import search
from tests.facetrain.planning.problems import CONFIG, planner, problem


@pytest.fixture(scope="module")
def plan() -> StepPlan:
    one = planner(problem())
    found, family, micro_batches = one.best()
    return StepPlan(
        one.problem, found, family, micro_batches, one.chain(micro_batches), one.compare()
    )


@pytest.fixture
def content(plan: StepPlan) -> dict[str, Any]:
    return json.loads(json.dumps(plan_content(plan)))  # type: ignore[no-any-return]


def test_a_written_plan_is_read_and_applied(plan: StepPlan, tmp_path: Path) -> None:
    path = tmp_path / PLAN_FILE
    write_plan(path, plan)
    read = read_plan(path)
    assert read.peak_bytes == plan.found.outcome.peak_bytes
    assert read.step_us == plan.found.outcome.time_us
    applied = read.applied(CONFIG)
    settings = settings_of(plan)
    assert applied.head.head_schedule == settings["head_schedule"]
    assert applied.head.head_ranks == settings["head_ranks"]
    assert applied.optim.zero_stage == settings["zero_stage"]
    assert applied.model == CONFIG.model
    assert applied.problems() == []
    assert read.describe().count("\n") == 0


def test_a_plan_for_another_run_is_told_apart(plan: StepPlan, tmp_path: Path) -> None:
    path = tmp_path / PLAN_FILE
    write_plan(path, plan)
    read = read_plan(path)
    config = replace(CONFIG, optim=replace(CONFIG.optim, global_batch_size=16 * 8))
    assert read.mismatches(config, 100_000, 16) == []
    assert read.mismatches(config, 99_999, 8) == [
        "identities: 100000 planned, 99999 here",
        "images per device: 8 planned, 16 here",
        "devices: 16 planned, 8 here",
    ]


def test_layers_that_keep_their_gathered_weights_are_named(plan: StepPlan) -> None:
    def chosen(strategy: str) -> Any:
        return search(
            plan.chain, lambda o: o.is_executable and o.strategy in (strategy, "sharded")
        ).least()

    regathered = replace(plan, found=chosen("zero3"))
    assert settings_of(regathered)["zero_stage"] == 3
    assert settings_of(regathered)["zero_keeps"] == []
    kept = replace(plan, found=chosen("zero2"))
    assert settings_of(kept)["zero_stage"] == 2
    mixed_choice = (kept.found.choice[0], *regathered.found.choice[1:])
    mixed = replace(plan, found=replace(kept.found, choice=mixed_choice))
    assert settings_of(mixed)["zero_stage"] == 3
    assert settings_of(mixed)["zero_keeps"] == [plan.chain.stages[0].name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1, 2]", "not a plan"),
        ('{"format": "facetrain-plan", "version": 99}', "a plan of version 99, expected 1"),
        (
            '{"format": "facetrain-plan", "version": 1}',
            "problem, settings, predicted missing, unknown or of a wrong type or range",
        ),
    ],
)
def test_what_is_no_plan(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FacetrainError, match=said) as error:
        read_plan(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_every_wrong_field_is_named(content: dict[str, Any], tmp_path: Path) -> None:
    content["settings"]["zero_stage"] = "3"
    content["problem"]["devices"] = True
    del content["predicted"]["peak_bytes"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(
        FacetrainError, match=r"problem.devices, settings.zero_stage, predicted.peak_bytes missing"
    ):
        read_plan(path)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("predicted", "step_us", float("nan")),
        ("predicted", "step_us", 10**400),
        ("predicted", "peak_bytes", -1),
        ("predicted", "peak_bytes", 10**400),
        ("problem", "memory_bytes", 0),
        ("settings", "chunk_rows", -1),
        ("settings", "zero_keeps", [["head"]]),
        ("settings", "margin", "cosface"),
    ],
)
def test_values_that_no_plan_has(
    content: dict[str, Any], part: str, name: str, value: Any, tmp_path: Path
) -> None:
    content[part][name] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FacetrainError, match=rf"plan.json: {part}\.{name} "):
        read_plan(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    make(path)
    with pytest.raises(FacetrainError, match=r"plan\.json: no regular file"):
        read_plan(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FacetrainError, match=r"--plan .*none.json: No such file"):
        read_plan(tmp_path / "none.json")


def test_the_page_and_the_table_show_every_strategy(plan: StepPlan, tmp_path: Path) -> None:
    table = strategy_table(plan)
    assert {row[0] for row in table.rows} == {"this plan", *plan.rows}
    write_plan_page(tmp_path / "p", "A plan", plan)
    page = (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
    for name in plan.rows:
        assert name in page
    assert "<svg" in page
    assert read_plan(tmp_path / "p" / PLAN_FILE).problem["devices"] == 16
