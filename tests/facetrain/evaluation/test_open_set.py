"""Identification by hand, and against loops over probes and identities."""

from __future__ import annotations

import json

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.evaluation import open_set
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.open_set import (
    cumulative_matches,
    detection_at_far,
    identify,
    identify_amid_distractors,
)
from facetrain.evaluation.search import build_index, search_blocks


def at(*degrees: float) -> np.ndarray:
    """Unit vectors in the plane: the nearer their angles, the more alike."""
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 1).astype(
        np.float32
    )


def test_identification_by_hand() -> None:
    # Gallery: A at 0 and 40 degrees, B at 90, C at 180.
    index = build_index(at(0, 40, 90, 180), "torch")
    probes = at(10, 60, 100, 170, 80, 130)
    names = np.array([0, 1, 1, 0, 7, 8])  # A, B, B, A, and two who are not enrolled
    result = identify(index, np.array([0, 0, 1, 2]), probes, names, max_rank=3, far_targets=(0.5,))
    # Probe 60 of B: A at 40 is 20 degrees away, B 30: rank 2. Probe 170 of A: C 10, B 80, A 130.
    assert result.ranks.tolist() == [1, 2, 1, 3]
    assert result.cmc.tolist() == [0.5, 0.75, 1.0]
    np.testing.assert_allclose(result.genuine, np.cos(np.radians([10, 30, 10, 130])), atol=1e-6)
    # Unmated: 10 degrees from B, 40 from B. FAR 0.5 lets one of two in: above cos 40.
    np.testing.assert_allclose(result.unmated, np.cos(np.radians([10, 40])), atol=1e-6)
    (point,) = result.dir_at_far
    assert point.tar == 0.5  # both at rank 1
    assert (result.num_gallery, result.num_identities, result.num_distractors) == (4, 3, 0)
    json.dumps(result.to_dict(), allow_nan=False)
    # Probe 80 (row 4) is 10 degrees from B (entry 2), and so is probe 170 (row 3) from C (entry 3).
    assert {(p.left, p.right) for p in result.worst.false_matches[:2]} == {(4, 2), (3, 3)}
    assert len(result.worst.false_matches) == 4
    # The lowest own score: probe 170 of A, whose better entry is the one at 40.
    assert (result.worst.misses[0].left, result.worst.misses[0].right) == (3, 1)


def test_distractors_come_between_by_hand() -> None:
    index = build_index(at(0, 90), "torch")
    others = at(20, 25, 60)
    result = identify(
        index,
        np.array([0, 1]),
        at(10, 85, 30),
        np.array([0, 1, 5]),
        distractor_scores=build_index(others, "torch").search(at(10, 85, 30), 2)[0],
        num_distractors=3,
        max_rank=2,
        far_targets=(1.0,),
    )
    # Probe 10 of A: A is 10 degrees away, and so is the distractor at 20: the tie counts against it
    # as far as rounding lets them tie. Probe 85 of B: B 5 degrees, first.
    assert result.ranks[1] == 1
    assert result.ranks[0] in (1, 2)
    np.testing.assert_allclose(result.unmated, np.cos(np.radians([5])), atol=1e-6)


def slow_ranks(
    gallery: np.ndarray, gallery_ids: np.ndarray, probes: np.ndarray, probe_ids: np.ndarray
) -> list[int]:
    scores = (probes.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)
    ranks = []
    for line, name in zip(scores, probe_ids, strict=True):
        own = max(line[gallery_ids == name])
        better = [i for i in set(gallery_ids) - {name} if max(line[gallery_ids == i]) >= own]
        ranks.append(1 + len(better))
    return ranks


@pytest.mark.parametrize("max_rank", [1, 3, 30])
@pytest.mark.parametrize("kind", ["random", "copies"])
@pytest.mark.parametrize("with_distractors", [False, True])
def test_ranks_equal_a_loop_over_identities(
    max_rank: int, kind: str, with_distractors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_set, "_PROBES_PER_BLOCK", 7)
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(10), rng.integers(1, 5, 10))
    centers = rng.normal(size=(12, 6))
    gallery = centers[ids] + 0.8 * rng.normal(size=(len(ids), 6))
    probe_ids = rng.integers(0, 12, 40)  # 10 and 11 are not enrolled
    probes = centers[probe_ids] + 0.8 * rng.normal(size=(40, 6))
    others = rng.normal(size=(15, 6))
    if kind == "copies":  # ties between identities, and with distractors
        gallery[::3], others[::2], probes[::5] = gallery[0], gallery[0], gallery[0]
    gallery, probes, others = (unit_embeddings(x) for x in (gallery, probes, others))
    result = identify(
        build_index(gallery, "torch"),
        ids,
        probes,
        probe_ids,
        distractor_scores=search_blocks(
            [others[:4], others[4:]], probes, min(max_rank, 15), "torch"
        )[0]
        if with_distractors
        else None,
        num_distractors=15 * with_distractors,
        max_rank=max_rank,
    )
    entries, names = gallery, ids
    if with_distractors:
        entries = np.concatenate([gallery, others])
        names = np.append(ids, 100 + np.arange(15))
    mated = probe_ids < 10
    expected = slow_ranks(entries, names, probes[mated], probe_ids[mated])
    assert result.ranks.tolist() == np.minimum(expected, max_rank + 1).tolist()
    best = (probes[~mated].astype(np.float64) @ entries.T.astype(np.float64)).max(axis=1)
    np.testing.assert_array_equal(result.unmated, best.astype(np.float32))
    shares = [np.mean(np.array(expected) <= rank) for rank in range(1, max_rank + 1)]
    np.testing.assert_allclose(result.cmc, shares)


@pytest.mark.parametrize("target", [1.0, 0.5, 0.4, 0.25, 0.2, 0.1])
def test_detection_equals_a_loop_over_thresholds(target: float) -> None:
    rng = np.random.default_rng(int(100 * target))
    detected, unmated = (rng.integers(0, 8, num).astype(np.float32) / 8 for num in (9, 5))
    point = detection_at_far(detected, 12, unmated, target)
    if target < 1 / 5:
        assert (point.tar, point.threshold) == (None, None)
        return
    allowed = [t for t in [*detected, *unmated, 9.0] if np.mean(unmated >= t) <= target]
    assert point.tar == max(np.sum(detected >= t) for t in allowed) / 12
    assert point.threshold is not None
    assert point.tar == np.sum(detected >= point.threshold) / 12
    assert point.far == np.mean(unmated >= point.threshold) <= target


def test_detection_without_unmated_probes_is_not_measurable() -> None:
    assert detection_at_far(np.ones(3, np.float32), 3, np.empty(0, np.float32), 1.0).tar is None
    none_found = detection_at_far(np.empty(0, np.float32), 3, np.ones(2, np.float32), 0.5)
    assert (none_found.tar, none_found.far) == (0.0, 0.0)
    with pytest.raises(FacetrainError, match="far_target 0"):
        detection_at_far(np.ones(3, np.float32), 3, np.ones(2, np.float32), 0)


def test_megaface_protocol_equals_a_loop_over_mates() -> None:
    rng = np.random.default_rng(1)
    labels = np.array([0, 0, 0, 1, 1, 2])  # 2 has one image: no mate
    unit = unit_embeddings(rng.normal(size=(3, 6))[labels] + rng.normal(size=(6, 6)))
    others = unit_embeddings(rng.normal(size=(30, 6)))
    index = build_index(others, "torch")
    result = identify_amid_distractors(
        unit, labels, index.search(unit, 5)[0], 30, "test", max_rank=5
    )
    ranks = []
    for probe in range(6):
        for mate in range(6):
            if probe != mate and labels[probe] == labels[mate]:
                own = np.float32(unit[probe].astype(float) @ unit[mate].astype(float))
                scores = (others.astype(float) @ unit[probe].astype(float)).astype(np.float32)
                ranks.append(min(6, 1 + int(np.sum(scores >= own))))
    assert sorted(result.ranks.tolist()) == sorted(ranks)
    assert len(ranks) == 8
    assert len(set(ranks)) > 2
    assert result.cmc[0] == np.mean(np.array(ranks) == 1)


def test_bad_input_is_refused() -> None:
    index = build_index(at(0, 90), "torch")
    with pytest.raises(FacetrainError, match="none of 1 probes"):
        identify(index, np.array([0, 1]), at(0), np.array([5]))
    with pytest.raises(FacetrainError, match="3 identities for 2 gallery entries"):
        identify(index, np.array([0, 1, 2]), at(0), np.array([0]))
    with pytest.raises(FacetrainError, match="no two of one identity"):
        identify_amid_distractors(at(0, 90), np.array([0, 1]), np.zeros((2, 2)), 2, "")
    with pytest.raises(FacetrainError, match="no distractors"):
        identify_amid_distractors(at(0, 90), np.array([0, 0]), np.zeros((2, 0)), 0, "")
    with pytest.raises(FacetrainError, match=r"distractor scores \[2, 3\]: expected \[1, 4\]"):
        identify(
            index,
            np.array([0, 1]),
            at(0),
            np.array([0]),
            distractor_scores=np.zeros((2, 3)),
            num_distractors=4,
        )
    assert cumulative_matches(np.array([1, 3, 9]), 3).tolist() == [1 / 3, 1 / 3, 2 / 3]
