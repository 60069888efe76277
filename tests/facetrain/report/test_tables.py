"""Tables of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.evaluation.metrics import ScoreReport
from facetrain.report.tables import (
    far_text,
    percent,
    tar_table,
    threshold_table,
    threshold_texts,
)


def report() -> ScoreReport:
    return ScoreReport.of(np.array([0.9, 0.5]), np.arange(20) / 25, far_targets=(1e-1, 1e-2))


def test_tar_table_has_a_row_per_system_and_says_what_cannot_be_measured() -> None:
    table = tar_table({"ours": report(), "theirs": report()})
    assert table.header == ("system", "TAR@FAR=1e-1", "TAR@FAR=1e-2", "EER", "AUC")
    assert [row[:3] for row in table.rows] == [
        ("ours", "50.00 %", "n/a"),
        ("theirs", "50.00 %", "n/a"),
    ]
    assert table.caption == "n/a: cannot be measured with 20 impostor pairs"
    assert tar_table({}).rows == []


def test_threshold_table_gives_both_measures() -> None:
    table = threshold_table(report())
    assert table.rows[0] == ("1e-1", "50.00 %", "0", "0.9000", "0.2000")
    assert table.rows[1] == ("1e-2", "n/a", "n/a", "n/a", "n/a")


def test_a_threshold_near_1_keeps_the_digits_that_matter() -> None:
    assert threshold_texts(0.2937) == ("0.2937", "1.4126")
    assert threshold_texts(0.9999984) == ("0.99999840", "3.2e-06")
    assert threshold_texts(1.0000019)[1] == "0"


@pytest.mark.parametrize(
    ("far", "text"),
    [(1e-1, "1e-1"), (1.0, "1e0"), (0.000996, "9.96e-4"), (0.05, "5e-2"), (0.0, "0")],
)
def test_far_text(far: float, text: str) -> None:
    assert far_text(far) == text


def test_percent() -> None:
    assert percent(0.98184) == "98.18 %"
    assert percent(1.0, 0) == "100 %"
