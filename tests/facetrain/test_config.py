"""Every field that cannot be used is reported, all in one go."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from facetrain.config import DataConfig, HeadConfig, ModelConfig, OptimConfig, RunConfig
from facetrain.errors import ConfigError
from facetrain_datasets.loader import MAX_WORKERS

WRONG = {
    ModelConfig: {"backbone": "resnet", "embedding_size": 1, "dropout": 1.0},
    HeadConfig: {
        "margin": "noface",
        "margin_value": -1.0,
        "margin_options": ("m=0.2",),
        "margin_gradient": "around",
        "scale": 0.0,
        "sub_centers": 0,
        "sample_rate": 0.0,
        "interclass_filtering_threshold": -0.5,
        "head_schedule": "rows",
        "chunk_rows": -1,
        "head_ranks": -1,
        "tile_classes": -1,
        "head_memory": "2 gigs",
        "head_precision": "fp8",
        "center_momentum": "fp16",
        "max_center_gradient_norm": -1.0,
    },
    OptimConfig: {
        "optimizer": "lion",
        "epochs": 0.0,
        "global_batch_size": 0,
        "micro_batches": 0,
        "lr": 0.0,
        "schedule": "steps",
        "warmup_epochs": -1.0,
        "momentum": 1.0,
        "weight_decay": -0.1,
        "max_gradient_norm": -1.0,
        "zero_stage": 4,
        "zero_keeps": ("head",),
    },
    DataConfig: {
        "transforms": ("flop",),
        "order": "random",
        "images_in_a_row": 0,
        "num_workers": -1,
        "bad_images": "ignore",
    },
    RunConfig: {
        "name": "a/b",
        "num_processes": 0,
        "engine": "mpi",
        "device": "tpu",
        "precision": "fp8",
        "memory": "4 gigs",
        "seed": -1,
        "checkpoint_every": 0,
        "log_every": 0,
        "search": "annoy",
        "timeout_s": 0.0,
    },
}
# Any value will do, or (the folder) it is looked at when the run starts.
FREE = {
    "out",
    "resume",
    "allow_grey",
    "initial_weights",
    "initial_centers",
    "plan",
    "model",
    "head",
    "optim",
    "data",
}
PARTS = {ModelConfig: "model", HeadConfig: "head", OptimConfig: "optim", DataConfig: "data"}

FLOATS = [
    (kind, field.name)
    for kind in WRONG
    for field in dataclasses.fields(kind)
    if "float" in str(field.type)
]
CASES = [(kind, name, value) for kind, fields in WRONG.items() for name, value in fields.items()]


def _config(kind: type, name: str, value: object) -> RunConfig:
    if kind is RunConfig:
        return RunConfig(**{name: value})  # type: ignore[arg-type]
    return RunConfig(**{PARTS[kind]: kind(**{name: value})})


def test_every_field_has_a_wrong_value_here() -> None:
    for kind, fields in WRONG.items():
        names = {field.name for field in dataclasses.fields(kind)}
        assert names - FREE == set(fields)


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=lambda value: str(value))
def test_a_wrong_value_is_named_with_its_flag_and_what_is_allowed(
    kind: type, name: str, value: object
) -> None:
    config = _config(kind, name, value)
    with pytest.raises(ConfigError) as raised:
        config.check()
    flag = "--" + name.replace("_", "-")
    assert any(problem.startswith(f"{flag} ") for problem in raised.value.problems)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(("kind", "name"), FLOATS)
def test_numbers_are_finite(kind: type, name: str, value: float) -> None:
    flag = "--" + name.replace("_", "-")
    assert _config(kind, name, value).problems() == [f"{flag} {value}: must be a finite number"]


@pytest.mark.parametrize("num_workers", [MAX_WORKERS, MAX_WORKERS + 1])
def test_loader_workers_have_the_limit_of_the_loader(num_workers: int) -> None:
    problems = RunConfig(data=DataConfig(num_workers=num_workers)).problems()
    too_many = [f"--num-workers {num_workers}: must be 0 to {MAX_WORKERS}"]
    assert problems == (too_many if num_workers > MAX_WORKERS else [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("h",), "--margin-options h: each must be NAME=NUMBER"),
        (("h=x", "value=1"), "--margin-options h=x value=1: each must be NAME=NUMBER"),
        (("h=nan",), "--margin-options h=nan: must be a finite number"),
        (("h=-1",), "--margin-options h=-1: must be in [0, 10] for adaface"),
        (("h=1", "h=0.3"), "--margin-options h=1 h=0.3: h must be given once"),
        (("m=1",), "--margin-options m=1: the options of adaface are value, h, t_alpha"),
    ],
)
def test_margin_options_are_checked_by_name(options: tuple[str, ...], problem: str) -> None:
    config = RunConfig(head=HeadConfig(margin="adaface", margin_options=options))
    assert config.problems() == [problem]
    fine = HeadConfig(margin="adaface", margin_value=0.3, margin_options=("h=0.2",))
    assert fine.margin_arguments() == {"value": 0.3, "h": 0.2}
    twice = RunConfig(head=dataclasses.replace(fine, margin_options=("value=0.4",)))
    assert twice.problems() == [
        "--margin-options value=0.4: value is --margin-value, 0.3 here; use that alone"
    ]


@pytest.mark.parametrize(
    ("head", "optim", "problem"),
    [
        ({}, {"optimizer": "adamw", "momentum": 0.5}, "--momentum 0.5: is SGD's"),
        ({"center_momentum": "bf16"}, {"optimizer": "adamw"}, "leave out with --optimizer adamw"),
        ({"center_momentum": "bf16"}, {"momentum": 0.0}, "leave out with --momentum 0"),
        ({"initial_centers": Path("x"), "sub_centers": 2}, {}, "use --sub-centers 1"),
    ],
)
def test_an_option_that_others_leave_without_effect_is_refused(
    head: dict[str, object], optim: dict[str, object], problem: str
) -> None:
    config = RunConfig(head=HeadConfig(**head), optim=OptimConfig(**optim))  # type: ignore[arg-type]
    (found,) = config.problems()
    assert problem in found


def test_images_in_a_row_without_a_balanced_order_is_refused() -> None:
    (found,) = RunConfig(data=DataConfig(images_in_a_row=2)).problems()
    assert found == "--images-in-a-row 2: is for --order balanced"
    assert RunConfig(data=DataConfig(order="balanced", images_in_a_row=2)).problems() == []


def test_the_largest_micro_batch_holds_the_rows_left_over() -> None:
    assert OptimConfig(global_batch_size=7, micro_batches=3).largest_micro_batch == 3


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a/b", "/tmp", "a b", "a\n"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    (problem,) = RunConfig(name=name).problems()
    assert problem.startswith(f"--name {name!r}: must be letters")


@pytest.mark.parametrize("name", ["run", "2026-lfw_v1.5", "A"])
def test_a_plain_name_is_fine(name: str) -> None:
    assert RunConfig(name=name).problems() == []


def test_three_errors_are_reported_together() -> None:
    config = RunConfig(
        model=ModelConfig(backbone="resnet"), optim=OptimConfig(lr=-1.0), precision="fp8"
    )
    with pytest.raises(ConfigError) as raised:
        config.check()
    assert len(raised.value.problems) == 3
    for flag in ("--backbone resnet", "--lr -1.0", "--precision fp8"):
        assert flag in str(raised.value)


def test_the_defaults_are_fine_and_plain_json() -> None:
    import json

    assert RunConfig().check() == RunConfig()
    assert json.loads(json.dumps(RunConfig().to_dict()))["optim"]["momentum"] == 0.9


def test_what_a_plan_chooses_is_not_said_beside_it() -> None:
    config = RunConfig(
        head=HeadConfig(head_ranks=2),
        optim=OptimConfig(zero_stage=3, zero_keeps=("head",)),
        plan="auto",
    )
    assert [problem.split(":")[0] for problem in config.problems()] == [
        "--zero-stage 3",
        "--zero-keeps head",
        "--head-ranks 2",
    ]


@pytest.mark.parametrize("ranks", [-1, 10**9])
def test_ranks_of_a_copy_that_no_run_has(ranks: int) -> None:
    """Classes are cut into as many parts before a process is asked."""
    (problem,) = RunConfig(head=HeadConfig(head_ranks=ranks)).problems()
    assert problem.startswith(f"--head-ranks {ranks}: must be 0 (all processes) or at most")
