"""CurricularFace: ArcFace's target, hard classes reshaped, t a running mean, its bound reached."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.margins import ArcFace, CurricularFace
from tests.facetrain.margins.checks import apply, central_difference, slopes


def at(t: float, value: float = 0.5) -> CurricularFace:
    margin = CurricularFace(value)
    margin.t.fill_(t)
    return margin


def test_target_is_arcfaces() -> None:
    cosines = [-0.98, -0.4, 0.3, 0.9]
    assert apply(CurricularFace(), cosines) == apply(ArcFace(), cosines)
    assert slopes(CurricularFace(), cosines) == slopes(ArcFace(), cosines)


def test_t_moves_by_a_hundredth_towards_each_batchs_mean_and_starts_at_zero() -> None:
    margin = CurricularFace()
    expected = 0.0
    for batch in ([0.1, 0.3, -0.2], [0.5], [0.9, 1.0000002], [-1.0, -0.8, 0.0, 0.2]):
        margin.observe(None, torch.tensor(batch))
        mean = sum(min(1.0, cosine) for cosine in batch) / len(batch)
        expected = 0.01 * mean + 0.99 * expected
        assert float(margin.t) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("t", [-0.4, 0.0, 0.37])
def test_only_classes_closer_than_the_target_with_margin_change(t: float) -> None:
    margin = at(t)
    targets = [0.1, 0.6, 0.95, -0.9]
    with_margin = apply(margin, targets)
    before = torch.tensor([[-0.9, -0.1, 0.05, 0.2], [0.3, 0.5, -0.7, 0.9], [0.99, 0.61, 0.6, -1.0]])
    after = before.clone()
    found = margin.shape_others(after, torch.tensor(with_margin))

    def reshaped(cosine: float, row: int) -> float:
        hard = cosine > math.cos(math.acos(targets[row]) + 0.5) or row == 3  # row 3 is beyond pi
        return cosine * (t + cosine) if hard else cosine

    num_changed = 0
    for k in range(before.shape[0]):
        for n in range(before.shape[1]):
            cosine = float(before[k, n])
            assert float(after[k, n]) == pytest.approx(reshaped(cosine, n), abs=1e-6)
            slope = central_difference(lambda c, n=n: reshaped(c, n), cosine)
            assert float(found[k, n]) == pytest.approx(slope, abs=1e-6)
            num_changed += float(after[k, n]) != cosine
    assert 0 < num_changed < before.numel()


@pytest.mark.parametrize("t", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_bound_is_reached_but_never_passed(t: float) -> None:
    margin = at(t)
    cosines = torch.linspace(-1, 1, 201)[:, None].repeat(1, 3)
    margin.shape_others(cosines, torch.tensor([-2.0, -0.5, 0.9]))
    assert margin.bound == pytest.approx(1 + abs(t))
    assert float(cosines.max()) == pytest.approx(margin.bound)
    assert float(cosines.max()) <= margin.bound + 1e-6
