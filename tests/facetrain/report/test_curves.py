"""Curves are valid, self-contained images in the page's own colour, whatever the data."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation.extremes import WorstPairs
from facetrain.evaluation.metrics import roc
from facetrain.evaluation.open_set import OpenSetResult, cumulative_matches
from facetrain.report.curves import (
    cmc_curves,
    count_histogram,
    det_curves,
    dir_curves,
    roc_curves,
    sampled,
    score_histogram,
)


def texts(svg: bytes) -> list[str]:
    """The texts of an SVG; fails where it is not well formed or not in the page's colour."""
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    content = svg.decode()
    assert "currentColor" in content
    assert "#010203" not in content
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")]


def curve(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=200)


def test_roc_names_every_system_as_it_is() -> None:
    systems = {"ours": 2.0, "_hidden & <b> $x$": 1.0}
    curves = {name: roc(curve(0) + shift, curve(1)) for name, shift in systems.items()}
    shown = [text.lstrip("\u200b") for text in texts(roc_curves(curves))]
    assert set(systems) <= set(shown)
    assert {"FAR", "TAR", "1e-2"} <= set(shown)
    with pytest.raises(FacetrainError, match="no system"):
        roc_curves({})


def test_roc_holds_more_systems_than_there_are_colours() -> None:
    curves = {f"system {i}": roc(curve(i), curve(i + 20)) for i in range(8)}
    assert set(curves) <= set(texts(roc_curves(curves)))


@pytest.mark.parametrize("threshold", [None, 0.25])
def test_histogram_states_the_number_of_pairs(threshold: float | None) -> None:
    shown = texts(score_histogram(curve(0), np.zeros(1234), threshold))
    assert {"genuine (200)", "impostor (1,234)"} <= set(shown)
    assert ("threshold 0.250" in shown) == (threshold is not None)


def test_histogram_of_equal_scores_is_drawn() -> None:
    texts(score_histogram(np.ones(3), np.ones(3)))


def test_det_has_both_axes_in_powers_of_ten() -> None:
    shown = texts(det_curves({"ours": roc(curve(0) + 1, curve(1))}))
    assert {"FAR", "missed (1 - TAR)", "ours", "1e-2"} <= set(shown)
    texts(det_curves({"perfect": roc(curve(0) + 99, curve(1))}))
    with pytest.raises(FacetrainError, match="no system"):
        det_curves({})


def test_one_pair_of_each_kind_is_drawn() -> None:
    tiny = roc(np.ones(1), np.zeros(1))
    texts(roc_curves({"tiny": tiny}))
    texts(det_curves({"tiny": tiny}))


def test_samples_follow_the_honest_rule() -> None:
    far, tar = sampled(roc(np.array([0.9, 0.5]), np.array([0.7] + [0.0] * 9)))
    assert (far[0], far[-1]) == (pytest.approx(0.1), 1.0)
    assert (tar[0], tar[-1]) == (1.0, 1.0)
    assert sampled(roc(np.array([0.9, 0.5]), np.array([0.7, 0.6] + [0.0] * 8)))[1][0] == 0.5


@pytest.mark.parametrize("num_cells", [4, 1 << 12])
def test_histogram_of_counts_states_the_number_of_pairs(num_cells: int) -> None:
    genuine, impostor = np.zeros(num_cells, np.int64), np.zeros(num_cells, np.int64)
    genuine[-1], impostor[:3] = 7, 500
    assert {"genuine (7)", "impostor (1,500)"} <= set(
        texts(count_histogram(genuine, impostor, 0.5))
    )
    genuine[:], impostor[:] = 0, 0
    genuine[1], impostor[1] = 1, 1
    texts(count_histogram(genuine, impostor))


def open_set(num_unmated: int) -> OpenSetResult:
    ranks = np.array([1, 1, 2])
    return OpenSetResult(
        num_gallery=3,
        num_identities=3,
        num_distractors=0,
        ranks=ranks,
        genuine=np.array([0.9, 0.4, 0.3], np.float32),
        unmated=np.linspace(0, 0.8, num_unmated).astype(np.float32),
        cmc=cumulative_matches(ranks, 5),
        dir_at_far=(),
        search="",
        worst=WorstPairs([], []),
    )


def test_cmc_and_dir_name_their_systems() -> None:
    assert {"G1", "rank", "found"} <= set(texts(cmc_curves({"G1": open_set(0).cmc})))
    shares = texts(cmc_curves({"G1": np.ones(5)}))
    assert max(float(text) for text in shares if text.startswith(("0.", "1."))) == 1.0
    assert {"G1", "DIR"} <= set(texts(dir_curves({"G1": open_set(50)})))
    texts(dir_curves({"one": open_set(1)}))
    with pytest.raises(FacetrainError, match="not enrolled"):
        dir_curves({"G1": open_set(0)})
