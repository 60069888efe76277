"""Planted wrong labels and strangers are found; the evidence equals a slow computation."""

from __future__ import annotations

import numpy as np
import pytest

from facetrain.curation import centers as module
from facetrain.curation.suspects import (
    SuspectThresholds,
    find_suspects,
    image_evidence,
)

from .conftest import People

THRESHOLDS = SuspectThresholds(outlier=0.35, alike=0.5)


def test_evidence_equals_the_slow_computation(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_BLOCK", 50)
    rng = np.random.default_rng(3)
    labels = people.labels.copy()
    labels[labels == 5] = 61  # 5 and 60 have no images
    labels[np.flatnonzero(labels == 8)[1:]] = 9  # 8 has one
    trusted = rng.random(len(labels)) < 0.8
    trusted[labels == 10] = False
    evidence = image_evidence(people.embeddings, labels, 62, trusted, backend="torch")
    some = np.array([3, 4, 99, 250, 7])
    part = image_evidence(people.embeddings, labels, 62, trusted, some, backend="torch")
    for whole, chosen in zip(evidence, part, strict=True):
        np.testing.assert_array_equal(whole[some], chosen)
    unit = people.embeddings / np.linalg.norm(people.embeddings, axis=1, keepdims=True)

    def cosine(row: int, identity: int) -> float:
        members = trusted & (labels == identity)
        members[row] = False
        mean = unit[members].mean(0) if members.any() else np.full(unit.shape[1], np.nan)
        return float(unit[row] @ mean / np.linalg.norm(mean))

    with np.errstate(invalid="ignore"):
        for row in range(0, len(labels), 7):
            assert evidence.own[row] == pytest.approx(
                cosine(row, labels[row]), abs=1e-5, nan_ok=True
            )
            others = {c: cosine(row, c) for c in range(62) if c != labels[row]}
            best = max((value, c) for c, value in others.items() if not np.isnan(value))
            assert evidence.other[row] == pytest.approx(best[0], abs=1e-5)
            assert evidence.nearest[row] == best[1]


def test_planted_mislabels_and_strangers_are_found_with_the_right_name(people: People) -> None:
    rng = np.random.default_rng(1)
    labels = people.labels.copy()
    embeddings = people.embeddings.copy()
    moved = rng.choice(len(labels), 12, replace=False)
    truth = labels[moved]
    labels[moved] = (truth + 1 + rng.integers(0, 50, 12)) % people.num_people
    rest = np.setdiff1d(np.arange(len(labels)), moved)
    strangers = rng.choice(rest, 8, replace=False)
    embeddings[strangers] = rng.normal(size=(8, embeddings.shape[1]))
    found = find_suspects(embeddings, labels, people.num_people, THRESHOLDS, backend="torch")
    assert set(found.rows[found.is_mislabelled].tolist()) == set(moved.tolist())
    assert set(found.rows[~found.is_mislabelled].tolist()) == set(strangers.tolist())
    suggested = dict(zip(found.rows.tolist(), found.nearest.tolist(), strict=True))
    assert [suggested[row] for row in moved.tolist()] == truth.tolist()
    assert (np.diff(found.own - found.other) >= 0).all()


def test_a_wrong_image_does_not_drag_the_right_one_of_two_along(people: People) -> None:
    """One right and one wrong image: the wrong one is known by whom it looks like."""
    rng = np.random.default_rng(2)
    right = people.more(rng, 0, 1)
    wrong = people.more(rng, 1, 1)
    others = people.labels != 0
    embeddings = np.concatenate([people.embeddings[others], right, wrong])
    labels = np.concatenate([people.labels[others], [0, 0]])
    found = find_suspects(embeddings, labels, people.num_people, THRESHOLDS, backend="torch")
    assert found.rows.tolist() == [len(labels) - 1]


def test_where_all_of_an_identity_are_suspect_all_are_listed(people: People) -> None:
    rng = np.random.default_rng(2)
    embeddings = np.concatenate(
        [people.embeddings, rng.normal(size=(2, people.embeddings.shape[1]))]
    )
    labels = np.concatenate([people.labels, [people.num_people] * 2])
    found = find_suspects(embeddings, labels, people.num_people + 1, THRESHOLDS, backend="torch")
    assert sorted(found.rows.tolist()) == [len(labels) - 2, len(labels) - 1]


def test_images_of_a_split_identity_are_not_suspect_for_looking_like_its_other_half(
    people: People,
) -> None:
    labels = people.labels.copy()
    labels[np.flatnonzero(labels == 7)[:2]] = people.num_people
    thresholds = SuspectThresholds(outlier=0.35, alike=0.5, gap=-0.3)
    without = find_suspects(
        people.embeddings, labels, people.num_people + 1, thresholds, backend="torch"
    )
    assert len(without.rows) == 6
    pair = np.array([(people.num_people, 7)])
    found = find_suspects(
        people.embeddings, labels, people.num_people + 1, thresholds, pair, backend="torch"
    )
    assert len(found.rows) == 0
