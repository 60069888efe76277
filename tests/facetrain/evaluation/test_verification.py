"""Verification of listed pairs against the protocol written out, and its bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import verify
from facetrain.evaluation.embeddings import unit_embeddings


def pairs(num_pairs: int = 200, noise: float = 0.8) -> dict[str, Any]:
    """Embeddings of noisy identities, pairs alternating between one identity and two."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(num_pairs, 16))
    embeddings = np.repeat(centers, 2, axis=0) + noise * rng.normal(size=(2 * num_pairs, 16))
    is_same = np.arange(num_pairs) % 2 == 0
    left = 2 * np.arange(num_pairs)
    right = np.where(is_same, left + 1, (left + 3) % (2 * num_pairs))
    scale = rng.uniform(0.1, 10, (2 * num_pairs, 1))  # lengths must not count
    return {
        "embeddings": (embeddings * scale).astype(np.float32),
        "left": left,
        "right": right,
        "is_same": is_same,
    }


def test_verify_equals_the_protocol_written_out() -> None:
    data = pairs()
    result = verify(**data, num_folds=10)
    unit = data["embeddings"].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    distance = ((unit[data["left"]] - unit[data["right"]]) ** 2).sum(1)
    accuracies = []
    for fold in range(10):
        test = np.arange(200) // 20 == fold
        right = [((distance < t) == data["is_same"])[~test].sum() for t in np.arange(0, 4, 0.01)]
        tied = np.flatnonzero(right == np.max(right))
        threshold = np.arange(0, 4, 0.01)[tied[len(tied) // 2]]
        accuracies.append(((distance < threshold) == data["is_same"])[test].mean())
    assert result.accuracy == pytest.approx(np.mean(accuracies))
    assert result.accuracy_std == pytest.approx(np.std(accuracies))
    assert 0.7 < result.accuracy < 1.0
    assert result.fold_rule == "in file order"
    # fp32 unit vectors against fp64 ones.
    np.testing.assert_allclose(
        result.scores.genuine, 1 - distance[data["is_same"]] / 2, rtol=0, atol=1e-6
    )


def test_threshold_is_given_in_both_measures() -> None:
    result = verify(**pairs())
    assert result.threshold_cosine == pytest.approx(1 - result.threshold_squared_l2 / 2)
    figures = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert figures["accuracy"] == result.accuracy
    assert len(figures["fold_accuracies"]) == 10


def test_list_that_is_not_in_folds_has_its_pairs_dealt() -> None:
    data = pairs()
    order = np.argsort(~data["is_same"], kind="stable")  # all genuine pairs first
    for name in ("left", "right", "is_same"):
        data[name] = data[name][order]
    result = verify(**data)
    assert "dealt in turn" in result.fold_rule
    assert result.accuracy == pytest.approx(verify(**pairs()).accuracy, abs=0.03)


def test_unit_embeddings_have_length_one_at_any_scale() -> None:
    embeddings = np.array([[3e-20, 4e-20], [3e30, -4e30]], dtype=np.float32)
    np.testing.assert_allclose(unit_embeddings(embeddings), [[0.6, 0.8], [0.6, -0.8]], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_same": np.ones(200, dtype=bool)}, "all 200 are of one identity"),
        ({"is_same": np.zeros(200, dtype=bool)}, "all 200 are of two identities"),
        ({"right": np.full(200, 400)}, "outside the 400 embeddings"),
        ({"left": np.zeros(3, dtype=int)}, "one of each per pair"),
        ({"num_folds": 1}, "num_folds 1: must be 2 to 200"),
        ({"embeddings": np.zeros((400, 4))}, "400 of 400 have no direction"),
        ({"embeddings": np.zeros(400)}, r"expected \[images, size\]"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FacetrainError, match=message):
        verify(**{**pairs(), **change})


def test_nan_embedding_is_named() -> None:
    data = pairs()
    data["embeddings"][17, 3] = np.nan
    with pytest.raises(FacetrainError, match=r"1 of 400 .* row 17"):
        verify(**data)


def test_embeddings_too_close_for_the_protocols_steps_get_finer_thresholds() -> None:
    data = pairs()
    base = np.ones(data["embeddings"].shape[1])
    # The same directions, seen from far away: nearly parallel embeddings.
    unit = data["embeddings"] / np.linalg.norm(data["embeddings"], axis=1, keepdims=True)
    crowded = verify(**{**data, "embeddings": base + 1e-3 * unit}, num_folds=10)
    assert "since embeddings are that close" in crowded.fold_rule
    assert crowded.accuracy > 0.8
    assert "that close" not in verify(**data, num_folds=10).fold_rule
