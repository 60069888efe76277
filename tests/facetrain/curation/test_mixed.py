"""Merged identities, and the parting of images against every possible one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from facetrain.curation.mixed import mixed_identities, part

from .conftest import People, scattered

THRESHOLD = 0.4


def test_planted_merges_are_found_and_parted_rightly(people: People) -> None:
    labels = people.labels.copy()
    merged = {4: 11, 30: 2}
    for kept, gone in merged.items():
        labels[labels == gone] = kept
    found = mixed_identities(people.embeddings, labels, THRESHOLD)
    assert {mixed.identity for mixed in found} == set(merged)
    for mixed in found:
        for rows in (mixed.first, mixed.second):
            assert len(set(people.labels[rows].tolist())) == 1
        assert len(mixed.first) + len(mixed.second) == 12
        assert mixed.cosine < THRESHOLD


def test_one_stranger_is_no_second_person(people: People) -> None:
    embeddings = people.embeddings.copy()
    embeddings[np.flatnonzero(people.labels == 3)[0]] *= -1.0
    assert mixed_identities(embeddings, people.labels, THRESHOLD) == []


def test_large_identities_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facetrain.curation.mixed._MAX_IMAGES", 20)
    rng = np.random.default_rng(0)
    directions = np.repeat(np.eye(8)[:2], 100, axis=0)
    (found,) = mixed_identities(scattered(rng, directions), np.zeros(200, np.int64), THRESHOLD)
    assert len(found.first) + len(found.second) == 20
    assert {tuple(np.unique(rows // 100)) for rows in (found.first, found.second)} == {(0,), (1,)}


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_two_people_are_the_best_of_all_partings(seed: int) -> None:
    """k-means maximises the summed cosines to the parts' centers; 2^8 partings are all tried."""
    rng = np.random.default_rng(seed)
    points = scattered(rng, np.eye(6)[[0, 0, 0, 1, 1, 1, 1, 1]])
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    in_second, cosine = part(unit)

    def value(second: np.ndarray) -> float:
        return sum(float(np.linalg.norm(unit[rows].sum(0))) for rows in (second, ~second))

    best = max(value(np.array(choice)) for choice in product((False, True), repeat=8))
    assert value(in_second) == pytest.approx(best)
    first, second = (unit[rows].mean(0) for rows in (~in_second, in_second))
    expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosine == pytest.approx(expected, abs=1e-6)


def test_equal_images_are_not_parted() -> None:
    unit = np.repeat(np.eye(4)[:1], 5, axis=0)
    in_second, cosine = part(unit)
    assert not in_second.any()
    assert cosine == 1.0
