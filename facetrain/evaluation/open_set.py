"""Identification: probes searched in a gallery, with distractors, closed set and open set.

Legend: G gallery entries, P probes, R the largest rank.

- CMC at rank r: the share of mated probes (whose identity is enrolled) for which fewer than r other
  identities score as high as their own or higher. A tie counts against the probe.
- DIR at FAR: with the threshold at which at most that share of the unmated probes finds anyone, the
  share of mated probes whose own identity comes first and is accepted. IJB calls the two TPIR and
  FPIR. Grother & Phillips, "Models of large population recognition performance", 2004.

Distractors are gallery entries of whom no probe is; each is an identity of its own. They enter as
the best scores that `search_blocks` finds among them, so there may be more than fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.extremes import Extremes, WorstPairs
from facetrain.evaluation.metrics import OperatingPoint
from facetrain.evaluation.search import SearchIndex

FAR_TARGETS = (0.1, 0.01, 0.001)
MAX_RANK = 20
_PROBES_PER_BLOCK = 4096
_CELLS_PER_BLOCK = 1 << 24


@dataclass(frozen=True, eq=False)
class OpenSetResult:
    """Outcome of an identification.

    Attributes:
        num_gallery: entries enrolled.
        num_identities: of them.
        num_distractors: entries of others.
        ranks: of each mated probe, int64; R + 1 stands for beyond R.
        genuine: score of each mated probe's own identity, float32.
        unmated: best score of each unmated probe, float32.
        cmc: float64 [R], shares of mated probes within ranks 1 .. R.
        dir_at_far: one operating point per target; `tar` is the DIR.
        search: the engine that answered, and why it did.
        worst: probes (left) and gallery entries (right): the highest scores of an entry of another
            identity that came first, and the lowest scores of a probe's own identity.
    """

    num_gallery: int
    num_identities: int
    num_distractors: int
    ranks: np.ndarray
    genuine: np.ndarray
    unmated: np.ndarray
    cmc: np.ndarray
    dir_at_far: tuple[OperatingPoint, ...]
    search: str
    worst: WorstPairs

    def dir_at(self, far_target: float) -> OperatingPoint:
        """The detection and identification rate at a target FAR."""
        return detection_at_far(
            self.genuine[self.ranks == 1], len(self.genuine), self.unmated, far_target
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a JSON file."""
        return {
            "num_gallery": self.num_gallery,
            "num_identities": self.num_identities,
            "num_distractors": self.num_distractors,
            "num_mated": len(self.genuine),
            "num_unmated": len(self.unmated),
            "rank": {str(rank + 1): float(share) for rank, share in enumerate(self.cmc)},
            "dir_at_far": [asdict(point) for point in self.dir_at_far],
            "search": self.search,
        }


def identify(
    index: SearchIndex,
    gallery_ids: np.ndarray,
    probes: np.ndarray,
    probe_ids: np.ndarray,
    *,
    distractor_scores: np.ndarray | None = None,
    num_distractors: int = 0,
    max_rank: int = MAX_RANK,
    far_targets: Sequence[float] = FAR_TARGETS,
    num_worst: int = 12,
) -> OpenSetResult:
    """Searches every probe in the gallery and among the distractors.

    Args:
        index: over the unit embeddings of the gallery [G, D].
        gallery_ids: identity of each entry, int [G], not below 0; one may have several entries,
            and then its best one counts.
        probes: unit embeddings float32 [P, D].
        probe_ids: identity of each probe, int [P].
        distractor_scores: the min(R, num_distractors) best of each probe among the distractors,
            float32 [P, ..], descending; None where there are none.
        num_distractors: how many there are.
        max_rank: R.
        far_targets: FARs to report DIR at; they need probes who are not enrolled.
        num_worst: false matches and misses to keep.

    Raises:
        FacetrainError: lengths that differ, or no probe whose identity is enrolled.
    """
    if len(gallery_ids) != len(index.embeddings) or len(probe_ids) != len(probes):
        raise FacetrainError(
            f"{len(gallery_ids)} identities for {len(index.embeddings)} gallery entries, "
            f"{len(probe_ids)} for {len(probes)} probes: expected one each"
        )
    identities, sizes = np.unique(gallery_ids, return_counts=True)
    mated = np.isin(probe_ids, identities)
    if not mated.any():
        raise FacetrainError(
            f"none of {len(probes)} probes is of an identity in the gallery; give both the same "
            "names"
        )
    # As many others as matter come among these entries, however they are spread over identities.
    wanted = int((max_rank + 1) * sizes.max())
    num_best = min(wanted, len(gallery_ids))
    own, own_rows = _own_scores(index.embeddings, gallery_ids, probes, probe_ids, mated)
    ranks = np.empty(len(probes), dtype=np.int64)
    top = np.empty(len(probes), dtype=np.float32)
    top_rows = np.empty(len(probes), dtype=np.int64)
    step = max(1, min(_PROBES_PER_BLOCK, _CELLS_PER_BLOCK // num_best))
    for start in range(0, len(probes), step):
        block = slice(start, start + step)
        scores, rows = index.search(probes[block], num_best)
        higher = scores >= own[block, None]
        found = np.where(higher, gallery_ids[rows], -1)
        found[found == probe_ids[block, None]] = -1
        ranks[block] = 1 + _distinct(found)
        top[block], top_rows[block] = scores[:, 0], rows[:, 0]
    if distractor_scores is not None:
        _check_distractors(distractor_scores, len(probes), min(max_rank, num_distractors))
        ranks += (distractor_scores >= own[:, None]).sum(axis=1)
        top_rows[distractor_scores[:, 0] > top] = -1
        top = np.maximum(top, distractor_scores[:, 0])
    false = np.flatnonzero((top_rows >= 0) & (gallery_ids[top_rows] != probe_ids))
    worst = [Extremes(num_worst, highest=highest) for highest in (True, False)]
    worst[0].add(top[false], false, top_rows[false])
    worst[1].add(own[mated], np.flatnonzero(mated), own_rows[mated])
    ranks = np.minimum(ranks[mated], max_rank + 1)
    unmated = top[~mated]
    genuine = own[mated]
    return OpenSetResult(
        num_gallery=len(gallery_ids),
        num_identities=len(identities),
        num_distractors=num_distractors,
        ranks=ranks,
        genuine=genuine,
        unmated=unmated,
        cmc=cumulative_matches(ranks, max_rank),
        dir_at_far=tuple(
            detection_at_far(genuine[ranks == 1], len(genuine), unmated, target)
            for target in far_targets
        ),
        search=index.describe(),
        worst=WorstPairs(worst[0].pairs(), worst[1].pairs()),
    )


def identify_amid_distractors(
    unit: np.ndarray,
    labels: np.ndarray,
    distractor_scores: np.ndarray,
    num_distractors: int,
    search: str,
    max_rank: int = MAX_RANK,
) -> OpenSetResult:
    """MegaFace's protocol: each image is searched for each other image of its identity.

    The gallery of one such search is that one mate and all distractors; other images of the
    identities take no part. Kemelmacher-Shlizerman et al., "The MegaFace Benchmark", 2016.

    Args:
        unit: embeddings float32 [M, D].
        labels: identity of each, int [M].
        distractor_scores: as for `identify`, of each image.
        num_distractors: how many there are.
        search: what it is, for the report.
        max_rank: R.

    Raises:
        FacetrainError: no two images of one identity, or no distractors.
    """
    _check_distractors(distractor_scores, len(unit), min(max_rank, num_distractors))
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(labels[order]) != 0))
    ranks, genuine = [], []
    for images in np.split(order, starts[1:]):
        if len(images) < 2:
            continue
        mates = _cosines(unit[images], unit[images])
        for probe, (others, own) in enumerate(zip(distractor_scores[images], mates, strict=True)):
            own = np.delete(own, probe)
            # Distractors that score as high or higher, from their descending scores.
            ranks.append(1 + np.searchsorted(-others, -own, side="right"))
            genuine.append(own)
    if not ranks:
        raise FacetrainError(f"{len(labels)} images and no two of one identity; nothing to search")
    all_ranks = np.minimum(np.concatenate(ranks), max_rank + 1)
    return OpenSetResult(
        num_gallery=1,
        num_identities=len(starts),
        num_distractors=num_distractors,
        ranks=all_ranks,
        genuine=np.concatenate(genuine),
        unmated=np.empty(0, np.float32),
        cmc=cumulative_matches(all_ranks, max_rank),
        dir_at_far=(),
        search=search,
        worst=WorstPairs([], []),
    )


def cumulative_matches(ranks: np.ndarray, max_rank: int) -> np.ndarray:
    """Shares float64 [max_rank] of ranks that are at most 1, 2, .."""
    counts = np.bincount(np.minimum(ranks, max_rank + 1), minlength=max_rank + 2)
    return counts[1 : max_rank + 1].cumsum() / len(ranks)


def detection_at_far(
    detected: np.ndarray, num_mated: int, unmated: np.ndarray, far_target: float
) -> OperatingPoint:
    """The largest DIR at any threshold that accepts at most this share of the unmated probes.

    Args:
        detected: scores of the mated probes whose own identity comes first.
        num_mated: mated probes in all.
        unmated: best scores of the unmated probes.
        far_target: share of unmated probes who may find anyone; not measurable below one of them.

    Raises:
        FacetrainError: a target outside (0, 1].
    """
    if not 0.0 < far_target <= 1.0:
        raise FacetrainError(f"far_target {far_target}: must be above 0, at most 1")
    if len(unmated) == 0 or far_target < 1.0 / len(unmated):
        return OperatingPoint(far_target, None, None, None)
    shares = np.arange(1, len(unmated) + 1) / len(unmated)
    num_allowed = int(np.searchsorted(shares, far_target, side="right"))
    descending = np.append(np.sort(unmated)[::-1], -np.inf)
    accepted = detected[detected > descending[num_allowed]]
    threshold = accepted.min() if len(accepted) else np.nextafter(descending[0], np.float32(np.inf))
    return OperatingPoint(
        far_target,
        far=float(np.mean(unmated >= threshold)),
        tar=len(accepted) / num_mated,
        threshold=float(threshold),
    )


def _check_distractors(scores: np.ndarray, num_probes: int, num_best: int) -> None:
    if num_best < 1:
        raise FacetrainError("no distractors; without them there is nothing to search")
    if scores.shape != (num_probes, num_best):
        raise FacetrainError(
            f"distractor scores {list(scores.shape)}: expected {[num_probes, num_best]}"
        )


def _distinct(ids: np.ndarray) -> np.ndarray:
    """Number of different values per line of [Q, K] that are not -1."""
    ordered = np.sort(ids, axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (new & (ordered != -1)).sum(axis=1)


def _own_scores(
    gallery: np.ndarray,
    gallery_ids: np.ndarray,
    probes: np.ndarray,
    probe_ids: np.ndarray,
    mated: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Best score of each probe's own identity, float32 [P], and its row; infinite and -1 without.

    The first row of those that score alike.
    """
    rows = np.full(len(probes), -1, dtype=np.int64)
    own = np.full(len(probes), np.inf, dtype=np.float32)
    order = np.argsort(gallery_ids, kind="stable")
    first, last = (
        np.searchsorted(gallery_ids[order], probe_ids, side=side) for side in ("left", "right")
    )
    for probe in np.flatnonzero(mated):
        entries = order[first[probe] : last[probe]]
        scores = _cosines(probes[probe : probe + 1], gallery[entries])[0]
        rows[probe] = entries[scores.argmax()]
        own[probe] = scores.max()
    return own, rows


def _cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Scores float32 [L, R] as the search index makes them: summed in float64."""
    return (left.astype(np.float64) @ right.astype(np.float64).T).astype(np.float32)
