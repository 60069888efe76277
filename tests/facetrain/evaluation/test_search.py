"""Both engines against an exhaustive float64 search, ties included; and which one serves."""

from __future__ import annotations

import importlib.metadata
import sys

import numpy as np
import pytest
import torch

from facetrain.errors import FacetrainError
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.search import (
    SEARCH_BACKENDS,
    SearchIndex,
    TorchIndex,
    build_index,
    installed_faiss,
    recall,
    search_blocks,
)

EXACT = [name for name, kind in SEARCH_BACKENDS.items() if kind.exact]


def backend(name: str) -> str:
    if name == "faiss":
        pytest.importorskip("faiss")
    return name


def slow_search(entries: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = np.array(
        [[np.dot(q.astype(float), e.astype(float)) for e in entries] for q in queries]
    )
    scores = scores.astype(np.float32)
    rows = np.array(
        [sorted(range(len(entries)), key=lambda row: (-line[row], row))[:k] for line in scores]
    )
    return np.take_along_axis(scores, rows, axis=1), rows


def entries(kind: str, num: int = 120) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "copies":  # every vector three times, some equal ones beyond any candidate list
        values = np.concatenate([rng.normal(size=(num // 4, 24))] * 3 + [np.ones((num // 4, 24))])
        return unit_embeddings(rng.permutation(values))
    if kind == "collapsed":  # an untrained network: all directions nearly one
        return unit_embeddings(1 + 1e-7 * rng.normal(size=(num, 24)))
    return unit_embeddings(rng.normal(size=(num, 24)))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["random", "copies", "collapsed"])
@pytest.mark.parametrize("k", [1, 2, 40, 120])
def test_search_equals_exhaustive_float64(name: str, kind: str, k: int) -> None:
    values = entries(kind)
    queries = np.concatenate([values[:20], np.ones((1, 24), np.float32)])
    scores, rows = build_index(values, backend(name)).search(queries, k)
    expected_scores, expected_rows = slow_search(values, queries, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


def test_search_beyond_the_engines_limit_is_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    values = entries("copies")
    monkeypatch.setattr(TorchIndex, "max_candidates", 8)  # as faiss on a GPU has one
    for k in (4, 20):
        _, rows = TorchIndex(values).search(values, k)
        np.testing.assert_array_equal(rows, slow_search(values, values, k)[1])


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    values = entries("copies")
    whole = TorchIndex(values).search(values, 5)
    for module in ("base", "flat"):
        monkeypatch.setattr(f"facetrain.evaluation.search.{module}.SCORES_PER_BLOCK", 1000)
    parts = TorchIndex(values).search(values, 5)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


def test_short_matrix_formats_of_a_training_run_do_not_leak_in() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        values = entries("random")
        _, rows = TorchIndex(values).search(values, 3)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    np.testing.assert_array_equal(rows, slow_search(values, values, 3)[1])


def test_auto_takes_faiss_where_it_is_installed() -> None:
    pytest.importorskip("faiss")
    assert build_index(entries("random")).describe().startswith("faiss ")


def test_auto_without_faiss_takes_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    text = build_index(entries("random")).describe()
    assert text.startswith("torch ")
    assert "faiss cannot be imported" in text
    assert "pip install 'facetrain[cpu]'" in text
    with pytest.raises(FacetrainError, match=r"pip install 'facetrain\[cpu\]'"):
        build_index(entries("random"), "faiss")


@pytest.mark.parametrize("name", ["auto", "faiss"])
def test_two_faiss_distributions_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> object:
        if name not in ("faiss-cpu", "faiss-gpu"):
            raise importlib.metadata.PackageNotFoundError(name)
        return object()

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert installed_faiss() == ("faiss-cpu", "faiss-gpu")
    with pytest.raises(FacetrainError, match=r"both installed.*pip uninstall"):
        build_index(entries("random"), name)
    assert isinstance(build_index(entries("random"), "torch"), SearchIndex)


def test_bad_queries_are_refused() -> None:
    index = build_index(entries("random"), "torch")
    with pytest.raises(FacetrainError, match="k 121: must be 1 to 120"):
        index.search(entries("random"), 121)
    with pytest.raises(FacetrainError, match=r"expected \[queries, 24\]"):
        index.search(np.zeros((2, 23), np.float32), 1)
    with pytest.raises(FacetrainError, match="NaN or infinite"):
        index.search(np.full((2, 24), np.nan, np.float32), 1)
    with pytest.raises(
        FacetrainError, match="'annoy' is unknown; choose one of auto, faiss, torch, ivf, hnsw"
    ):
        build_index(entries("random"), "annoy")


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["random", "copies", "collapsed"])
@pytest.mark.parametrize("rows_per_block", [1, 7, 120])
def test_search_over_blocks_equals_one_index(name: str, kind: str, rows_per_block: int) -> None:
    values = entries(kind)
    blocks = (values[start : start + rows_per_block] for start in range(0, 120, rows_per_block))
    scores, rows = search_blocks(blocks, values[:9], 11, backend(name))
    expected_scores, expected_rows = slow_search(values, values[:9], 11)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


def test_search_over_too_few_rows_is_refused() -> None:
    values = entries("random")
    with pytest.raises(FacetrainError, match="k 5: must be 1 to 4"):
        search_blocks([values[:3], values[3:4]], values[:1], 5, "torch")


@pytest.mark.parametrize("name", ["ivf", "hnsw"])
@pytest.mark.parametrize("num", [8, 2000])
def test_approximate_search_finds_most_and_scores_what_it_finds_exactly(
    name: str, num: int
) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(num // 4, 24))
    values = unit_embeddings(np.repeat(centers, 4, axis=0) + 0.3 * rng.normal(size=(num, 24)))
    index, exact = build_index(values, name), build_index(values, "torch")
    assert "approximate" in index.describe()
    scores, rows = index.search(values[:50], 4)
    again = np.einsum("qd,qkd->qk", values[:50], values[rows], dtype=np.float64)
    np.testing.assert_array_equal(scores, again.astype(np.float32))
    assert (np.diff(scores, axis=1) <= 0).all()
    assert recall(index, exact, values[:50], 4) > 0.95
    assert recall(exact, exact, values[:50], 4) == 1.0
    # More than an engine finds in the lists it visits: compared with all rows.
    assert len(np.unique(index.search(values[:1], num)[1])) == num
