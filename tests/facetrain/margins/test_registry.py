"""Margins by name, and what every one of them keeps."""

from __future__ import annotations

import inspect

import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain.margins import MARGINS, Margin, Targets, build_margin, margin_problems

NAMES = (
    "adaface",
    "arcface",
    "combined",
    "cosface",
    "curricularface",
    "elasticface_arc",
    "elasticface_cos",
    "magface",
    "sphereface",
    "uniface",
)
COSINES = torch.cat(
    [torch.tensor([-1.000001, -1.0, 1.0, 1.000001]), torch.linspace(-1 + 1e-7, 1 - 1e-7, 997)]
).sort()[0]


def after_some_steps(name: str, options: dict[str, float] | None = None) -> Margin:
    """A margin in the middle of a run."""
    margin = build_margin(name, options)
    margin.initialise(1000, 0.5)
    for step in range(3):
        margin.observe(torch.tensor([3.0, 20.0, 41.0]) + step, torch.tensor([0.1, -0.3, 0.9]))
        margin.draw(len(COSINES))
    return margin


def targets_of(margin: Margin, cosines: torch.Tensor) -> Targets:
    rows = torch.arange(len(cosines))
    lengths = torch.full(cosines.shape, 17.0)
    return Targets(cosines, rows, lengths if margin.uses_norms else None)


def test_names() -> None:
    assert tuple(MARGINS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_ranges_name_every_argument_hold_its_default_and_are_kept(name: str) -> None:
    arguments = inspect.signature(MARGINS[name]).parameters
    assert list(MARGINS[name].ranges) == list(arguments)
    margin = build_margin(name)
    for option, (low, high) in MARGINS[name].ranges.items():
        default = arguments[option].default
        assert isinstance(default, float)
        assert low <= default <= high
        assert float(getattr(margin, option)) == default
        assert f"{option}={default:g}" in repr(margin)


@pytest.mark.parametrize("name", NAMES)
def test_ends_of_ranges_give_finite_values_and_slopes_within_the_bound(name: str) -> None:
    choices: list[dict[str, float]] = [{}]
    for option, ends in MARGINS[name].ranges.items():
        choices += [{option: end} for end in ends if not margin_problems(name, {option: end})]
    for options in choices:
        margin = after_some_steps(name, options)
        cosines = COSINES.clone().requires_grad_()
        values = margin(targets_of(margin, cosines))
        (slopes,) = torch.autograd.grad(values.sum(), cosines)
        assert values.dtype == slopes.dtype == torch.float32
        assert bool(torch.isfinite(values).all())
        assert bool(torch.isfinite(slopes).all())
        assert float(values.detach().max()) <= margin.bound + 2e-6  # cosines go 1e-6 beyond 1


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"elasticface_arc", "elasticface_cos"}))
def test_closer_rows_never_score_less(name: str) -> None:
    margin = after_some_steps(name)
    assert float(margin(targets_of(margin, COSINES)).diff().min()) >= -3e-7  # rounding


@pytest.mark.parametrize("name", NAMES)
def test_rank_without_targets(name: str) -> None:
    margin = after_some_steps(name)
    assert margin(targets_of(margin, torch.empty(0))).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_a_round_trip(name: str) -> None:
    margin, restored = after_some_steps(name), build_margin(name)
    restored.load_state_dict(margin.state_dict())
    for each in (margin, restored):
        each.observe(torch.tensor([9.0, 30.0]), torch.tensor([0.5, 0.4]))
        each.draw(len(COSINES))
    found = restored(targets_of(restored, COSINES))
    assert torch.equal(found, margin(targets_of(margin, COSINES)))
    assert restored.bound == margin.bound


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_with_nan_leaves_statistics_usable(name: str) -> None:
    margin = after_some_steps(name)
    before = margin(targets_of(margin, COSINES))
    broken = torch.tensor([0.3, float("nan")])
    margin.observe(broken, broken)
    after = margin(targets_of(margin, COSINES))
    if name == "sphereface":  # its step counts on
        assert bool(torch.isfinite(after).all())
    else:
        assert torch.equal(after, before)


def test_other_classes_are_left_alone_unless_a_margin_says_so() -> None:
    for name in NAMES:
        margin = build_margin(name)
        if not margin.shapes_others:
            with pytest.raises(NotImplementedError, match="leaves other classes alone"):
                margin.shape_others(torch.zeros(1, 1), torch.zeros(1))


def test_unknown_margin_lists_the_known() -> None:
    message = f"'arcfase' is unknown: use one of {', '.join(NAMES)}"
    with pytest.raises(FacetrainError, match=message):
        build_margin("arcfase")


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(FacetrainError) as caught:
        build_margin("adaface", {"value": 2.0, "t_alpha": -1.0, "speed": 3.0})
    assert str(caught.value) == (
        "margin option value 2: must be in [0, 1] for adaface; "
        "margin option t_alpha -1: must be in [0, 1] for adaface; "
        "margin option speed 3: the options of adaface are value, h, t_alpha"
    )
    assert margin_problems("adaface", {"value": float("nan")}) != []
    assert margin_problems("adaface", {"h": 0.5}) == []
