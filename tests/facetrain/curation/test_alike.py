"""Split and shared identities against comparing everyone with everyone."""

from __future__ import annotations

import numpy as np

from facetrain.curation.alike import shared_identities, split_identities
from facetrain.curation.centers import identity_centers
from facetrain.curation.levels import measure_levels
from facetrain.evaluation.search import build_index

from .conftest import People


def test_planted_splits_are_found_each_once_and_nothing_else(people: People) -> None:
    labels = people.labels.copy()
    planted = set()
    for new, person in enumerate((3, 17, 40), people.num_people):
        labels[np.flatnonzero(labels == person)[:3]] = new
        planted.add((person, new))
    centers = identity_centers(people.embeddings, labels, people.num_people + 3)
    index = build_index(centers.unit(), "torch")
    pairs = split_identities(centers, index, measure_levels(centers, index).same_person)
    assert set(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == planted
    assert len(pairs) == 3
    assert (np.diff(pairs.cosines) <= 0).all()


def test_splits_equal_brute_force_with_class_ids_without_images() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.array([0, 2, 3, 7, 8, 9]), 2)
    embeddings = rng.normal(size=(12, 4))
    centers = identity_centers(embeddings, labels, 11)
    pairs = split_identities(centers, build_index(centers.unit(), "torch"), 0.2)
    unit, ids = centers.unit().astype(np.float64), centers.present
    expected = [
        (ids[a], ids[b]) for a in range(6) for b in range(a + 1, 6) if unit[a] @ unit[b] >= 0.2
    ]
    assert expected
    assert sorted(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == expected


def test_shared_people_of_two_sets_are_found(people: People) -> None:
    rng = np.random.default_rng(5)
    shared = {7: 1, 20: 0, 21: 4}  # person of the first set -> identity of the second
    embeddings = rng.normal(size=(60, people.embeddings.shape[1])).astype(np.float32)
    labels = np.repeat(np.arange(20), 3)
    for person, identity in shared.items():
        embeddings[labels == identity] = people.more(rng, person, 3)
    left = identity_centers(people.embeddings, people.labels, people.num_people)
    right = identity_centers(embeddings, labels, 20)
    levels = measure_levels(left, build_index(left.unit(), "torch"))
    pairs = shared_identities(left, right, build_index(right.unit(), "torch"), levels.same_person)
    assert dict(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == shared
