"""Options of the head: bytes as the head itself reckons them, copies by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from facetrain.classifier.schedule import evaluate
from facetrain.config import HeadConfig
from facetrain.planning.head import eager_option, head_options
from memopt.partition.chain import Option
from tests.facetrain.planning.problems import CONFIG, planner, problem

SIZE, CLASSES, DEVICES, ROWS = 128, 100_000, 16, 8


def options(**head: object) -> tuple[Option, ...]:
    config = replace(CONFIG, head=replace(HeadConfig(margin="cosface"), **head))  # type: ignore[arg-type]
    one = planner(problem(config=config))
    return head_options(one.problem, one.setting(), 1)


def test_groups_are_the_divisors_and_one_way_may_have_several_names() -> None:
    found = [o for o in options() if o.settings]
    assert {o.settings["head_ranks"] for o in found} == {0, 1, 2, 4, 8}
    assert {o.strategy for o in found if o.settings["head_ranks"] == 8} == {"node"}
    assert {o.strategy for o in found if o.settings["head_ranks"] == 0} == {"sharded"}
    assert {o.strategy for o in found if o.settings["head_ranks"] == 1} == {"replicated"}


@pytest.mark.parametrize("group", [1, 4, 16])
def test_bytes_of_a_group(group: int) -> None:
    own = [o for o in options() if o.settings.get("head_ranks") == (group if group < 16 else 0)]
    classes = CLASSES // group
    for option in own:
        assert option.resting_bytes == classes * SIZE * (4 + 4)
        assert option.gradient_bytes == (classes * SIZE * 4 if group < DEVICES else 0)
        one = planner(problem())
        from facetrain.planning.head import _work

        work = _work(one.problem, ROWS * group, classes, whole=group < DEVICES)
        schedule = evaluate(
            work, str(option.settings["head_schedule"]), int(str(option.settings["chunk_rows"]))
        )
        assert option.work_bytes == schedule.transient_bytes


def test_copies_sum_their_centers_gradient() -> None:
    whole, copies = (
        next(o for o in options() if o.settings.get("head_ranks") == ranks) for ranks in (0, 4)
    )
    assert sum(item.inter_bytes for item in copies.traffic) > sum(
        item.inter_bytes for item in whole.traffic
    )


def test_what_looks_at_the_whole_batch_is_not_copied() -> None:
    for head in ({"margin": "adaface"}, {"margin": "curricularface"}, {"sample_rate": 0.1}):
        assert {o.settings["head_ranks"] for o in options(**head) if o.settings} == {0}


def test_what_the_user_fixed_stays() -> None:
    found = [o for o in options(head_schedule="row_chunks", chunk_rows=16) if o.settings]
    assert {o.settings["head_schedule"] for o in found} == {"row_chunks"}
    assert {o.settings["chunk_rows"] for o in found} <= {8, 16}
    sampled = options(sample_rate=0.1)
    assert max(o.work_bytes for o in sampled if o.settings) < max(
        o.work_bytes for o in options() if o.settings
    )


def test_eager_logits_by_the_published_fit() -> None:
    one = planner(problem())
    option = eager_option(one.problem, one.setting(), 1)
    logits = ROWS * DEVICES * (CLASSES // DEVICES)
    assert option.work_bytes >= 27 * logits
    # 0.7 ns a logit where memory moves 0.9 TB/s
    scale = 0.9e12 / one.problem.cluster.device.memory_bytes_per_s
    assert option.time_us >= logits * 0.7e-3 * scale
