"""CosFace against its paper's equation 4, term by term."""

from __future__ import annotations

import pytest
import torch

from facetrain.margins import CosFace


def test_cosface_subtracts_the_margin_from_the_cosine() -> None:
    cosines = [-1.0, -0.3, 0.0, 0.9, 1.0]
    found = CosFace(0.4)(torch.tensor(cosines))
    for cosine, value in zip(cosines, found.tolist(), strict=True):
        assert value == pytest.approx(cosine - 0.4, abs=1e-6)


def test_cosface_defaults_to_its_papers_margin_and_stays_below_its_bound() -> None:
    assert CosFace().value == 0.35
    assert float(CosFace()(torch.tensor(1.0))) <= CosFace().bound
