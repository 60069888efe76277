"""ElasticFace: ArcFace and CosFace with the drawn margins, and what draws depend on."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain.margins import (
    ArcFace,
    CosFace,
    ElasticArcFace,
    ElasticCosFace,
    Targets,
    build_margin,
)
from tests.facetrain.margins.checks import apply, central_difference, slopes

COSINES = [-0.97, -0.4, 0.0, 0.3, 0.9]


def test_each_row_gets_its_own_drawn_margin() -> None:
    arc, cos = ElasticArcFace(), ElasticCosFace()
    for margin in (arc, cos):
        margin.draw(len(COSINES))
    angles = [math.acos(cosine) for cosine in COSINES]
    drawn = arc.margins_n.tolist()
    assert len(set(drawn)) == len(COSINES)
    expected = [math.cos(angle + m) for angle, m in zip(angles, drawn, strict=True)]
    expected[0] = COSINES[0] - drawn[0] * math.sin(drawn[0])  # past pi
    assert apply(arc, COSINES) == pytest.approx(expected, abs=1e-6)
    drawn = cos.margins_n.tolist()
    assert apply(cos, COSINES) == pytest.approx(
        [cosine - m for cosine, m in zip(COSINES, drawn, strict=True)], abs=1e-6
    )


def test_slope_is_that_of_the_rows_own_margin() -> None:
    margin = ElasticArcFace(std=0.2)
    margin.draw(len(COSINES))
    found, _ = slopes(margin, COSINES)
    for row, cosine in enumerate(COSINES):
        rows = [*COSINES]

        def value(moved: float, row: int = row, rows: list[float] = rows) -> float:
            return apply(margin, [*rows[:row], moved, *rows[row + 1 :]])[row]

        assert found[row] == pytest.approx(central_difference(value, cosine), rel=1e-5)


def test_a_rank_with_some_rows_uses_their_margins_of_the_global_batch() -> None:
    margin = ElasticCosFace()
    margin.draw(5)
    whole = apply(margin, COSINES)
    rows = torch.tensor([4, 1])
    part = margin(Targets(torch.tensor(COSINES, dtype=torch.float64)[rows], rows))
    assert part.tolist() == [whole[4], whole[1]]


@pytest.mark.parametrize("kind", [ElasticArcFace, ElasticCosFace])
def test_draws_have_the_papers_mean_and_spread_and_stay_in_range(
    kind: type[ElasticArcFace] | type[ElasticCosFace],
) -> None:
    margin = kind()
    margin.draw(20_000)
    drawn = margin.margins_n
    # Five standard errors of mean and deviation.
    assert float(drawn.mean()) == pytest.approx(margin.value, abs=5 * 0.05 / 141)
    assert float(drawn.std()) == pytest.approx(0.05, abs=5 * 0.05 / 200)
    wide = kind(value=0.1, std=1.0)
    wide.draw(1000)
    low, high = kind.ranges["value"]
    assert float(wide.margins_n.min()) == low
    assert float(wide.margins_n.max()) == pytest.approx(high)


def test_draws_depend_on_seed_and_step_alone_and_go_on_after_a_resumption() -> None:
    first, second, other = ElasticArcFace(), ElasticArcFace(), ElasticArcFace(seed=1)
    torch.manual_seed(99)  # the global generator plays no part
    drawn = []
    for _ in range(3):
        first.draw(64)
        drawn.append(first.margins_n.clone())
    torch.manual_seed(1)
    second.draw(64)
    other.draw(64)
    assert torch.equal(second.margins_n, drawn[0])
    assert not torch.equal(other.margins_n, drawn[0])
    assert not torch.equal(drawn[1], drawn[0])

    resumed = ElasticArcFace()
    resumed.load_state_dict(second.state_dict())
    for step in (1, 2):
        resumed.draw(64)
        assert torch.equal(resumed.margins_n, drawn[step])


def test_broken_seed_is_refused() -> None:
    with pytest.raises(FacetrainError, match=r"seed 0\.5 must be a whole number"):
        build_margin("elasticface_arc", {"seed": 0.5})


def test_evaluation_uses_the_mean() -> None:
    assert apply(ElasticArcFace().eval(), COSINES) == apply(ArcFace(0.5), COSINES)
    assert apply(ElasticCosFace().eval(), COSINES) == apply(CosFace(0.35), COSINES)
