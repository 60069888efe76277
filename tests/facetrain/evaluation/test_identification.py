"""Every image against every other, against loops over all pairs."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import evaluate_identities, identification
from facetrain.evaluation.embeddings import unit_embeddings


def identities(num: int = 12, images: int = 5, noise: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels = rng.permutation(np.append(np.repeat(np.arange(num), images), num))  # one has one image
    centers = rng.normal(size=(num + 1, 16))
    embeddings = centers[labels] + noise * rng.normal(size=(len(labels), 16))
    return embeddings.astype(np.float32), labels


@pytest.mark.parametrize("rows_per_block", [1, 7, 512])
def test_scores_and_rank1_equal_loops_over_pairs(
    rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identification, "_ROWS_PER_BLOCK", rows_per_block)
    embeddings, labels = identities()
    result = evaluate_identities(embeddings, labels, "torch")
    unit = unit_embeddings(embeddings).astype(np.float64)
    genuine, impostor = [], []
    for i, j in itertools.combinations(range(len(labels)), 2):
        (genuine if labels[i] == labels[j] else impostor).append(unit[i] @ unit[j])
    # One fp32 product of 16 terms per pair.
    np.testing.assert_allclose(np.sort(result.scores.genuine), np.sort(genuine), atol=1e-6)
    np.testing.assert_allclose(np.sort(result.scores.impostor), np.sort(impostor), atol=1e-6)
    hits = []
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        if any(labels[j] == labels[i] for j in others):
            hits.append(labels[max(others, key=lambda j: unit[i] @ unit[j])] == labels[i])
    assert result.rank1 == pytest.approx(np.mean(hits))
    assert result.num_probes == len(hits) == 60
    assert (result.num_images, result.num_identities) == (61, 13)
    assert 0.5 < result.rank1 < 1.0


def test_backends_agree_to_the_last_digit() -> None:
    pytest.importorskip("faiss")
    embeddings, labels = identities()
    ours = evaluate_identities(embeddings, labels, "torch").to_dict()
    theirs = evaluate_identities(embeddings, labels, "faiss").to_dict()
    assert theirs.pop("search").startswith("faiss")
    assert ours.pop("search").startswith("torch")
    assert ours == theirs


def test_copies_of_an_image_do_not_count_as_the_image_itself() -> None:
    # Images 0..2 are byte-identical, image 2 under another label; 3 is a mate of 2.
    embeddings = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
    result = evaluate_identities(embeddings, np.array([0, 0, 1, 1]), "torch")
    # 0 -> 1 hit; 1 -> 0 hit; 2 -> 0 miss; 3 -> 0 miss (all tied at 0, lowest row first).
    assert result.rank1 == 0.5


def test_figures_are_json() -> None:
    figures = evaluate_identities(*identities(), backend="torch").to_dict()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert [point["far_target"] for point in figures["tar_at_far"]] == [1e-1, 1e-2, 1e-3, 1e-4]


@pytest.mark.parametrize("labels", [np.zeros(4), np.arange(4)])
def test_one_identity_or_single_images_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(FacetrainError, match="at least two identities"):
        evaluate_identities(np.eye(4), labels)


def test_labels_of_another_number_are_refused() -> None:
    with pytest.raises(FacetrainError, match="expected one for 4 embeddings"):
        evaluate_identities(np.eye(4), np.zeros(3))


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identification, "MAX_PAIRS", 5)
    with pytest.raises(FacetrainError, match="4 images make 6 pairs, more than 5"):
        evaluate_identities(np.eye(4), np.array([0, 0, 1, 1]))
