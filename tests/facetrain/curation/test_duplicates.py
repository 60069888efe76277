"""Copies by bytes and by look, and their groups."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from facetrain.curation import duplicates as module
from facetrain.curation.duplicates import (
    DuplicatePairs,
    exact_pairs,
    group_duplicates,
    near_pairs,
    picture_agreement,
)
from facetrain.evaluation.search import build_index


def picture(seed: int) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return cv2.resize(small, (112, 112), interpolation=cv2.INTER_CUBIC)


def pairs_of(pairs: DuplicatePairs) -> list[tuple[int, int]]:
    return list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def test_exact_copies_are_paired_with_their_first() -> None:
    digests = np.array([(5, 1), (2, 2), (5, 1), (5, 2), (2, 2), (5, 1)], np.uint64)
    assert pairs_of(exact_pairs(digests)) == [(0, 2), (1, 4), (0, 5)]
    assert pairs_of(exact_pairs(np.arange(12, dtype=np.uint64).reshape(-1, 2))) == []
    assert pairs_of(exact_pairs(np.empty((0, 2), np.uint64))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image[:, ::-1],
        lambda image: np.clip(image * 0.7 + 40.0, 0, 255).astype(np.uint8),
        lambda image: cv2.resize(cv2.resize(image, (40, 40)), (112, 112)),
        lambda image: np.repeat(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2),
    ],
    ids=["mirrored", "other light", "low resolution", "grey"],
)
def test_a_changed_copy_agrees_and_another_picture_does_not(
    change: Callable[[np.ndarray], np.ndarray],
) -> None:
    assert picture_agreement(picture(0), change(picture(0))) > 0.97
    assert picture_agreement(picture(0), picture(1)) < 0.5


def test_flat_pictures_agree_with_nothing() -> None:
    flat = np.full((112, 112, 3), 90, np.uint8)
    assert picture_agreement(flat, flat) == 0.0
    assert picture_agreement(flat, picture(0)) == 0.0


def test_near_copies_need_like_embeddings_and_like_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_BLOCK", 3)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(8, 32))
    pictures = [picture(seed) for seed in range(8)]
    embeddings[5] = embeddings[2] + 0.02 * rng.normal(size=32)
    pictures[5] = pictures[2][:, ::-1]  # a near copy
    embeddings[6] = embeddings[1] + 0.02 * rng.normal(size=32)  # one person at another moment
    pictures[7] = pictures[3]  # alike as pictures only
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    read: list[int] = []

    def read_image(row: int) -> np.ndarray:
        read.append(row)
        return pictures[row]

    done: list[int] = []
    pairs = near_pairs(build_index(unit, "torch"), read_image, progress=done.append)
    assert pairs_of(pairs) == [(2, 5)]
    assert pairs.cosines[0] == pytest.approx(unit[2] @ unit[5], abs=1e-6)
    assert sorted(set(read)) == [1, 2, 5, 6]
    assert done == [3, 6, 8]


def test_groups_join_whatever_is_linked() -> None:
    first = np.array([4, 0, 2, 6])
    second = np.array([7, 2, 9, 8])
    ones = np.ones(4, np.float32)
    groups = group_duplicates(DuplicatePairs(first, second, ones, ones))
    assert [group.tolist() for group in groups] == [[0, 2, 9], [4, 7], [6, 8]]
