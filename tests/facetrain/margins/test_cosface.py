"""CosFace against its paper's equation 4, term by term."""

from __future__ import annotations

import pytest

from facetrain.margins import CosFace
from tests.facetrain.margins.checks import apply, slopes


def test_cosface_subtracts_the_margin_from_the_cosine_with_slope_one() -> None:
    cosines = [-1.0, -0.3, 0.0, 0.9, 1.0]
    for margin, value in ((CosFace(), 0.35), (CosFace(0.4), 0.4)):
        assert apply(margin, cosines) == pytest.approx([cosine - value for cosine in cosines])
        assert slopes(margin, cosines)[0] == [1.0] * len(cosines)
