"""IJB-B and IJB-C: 1:1 verification of listed template pairs, and 1:N search in two galleries.

15.7 million pairs are scored as they are read; only their scores stay, 4 bytes each.
Maze et al., "IARPA Janus Benchmark-C", 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from facetrain.errors import FacetrainError
from facetrain.evaluation.extremes import Extremes, WorstPairs
from facetrain.evaluation.metrics import ScoreReport
from facetrain.evaluation.open_set import OpenSetResult, identify
from facetrain.evaluation.search import build_index
from facetrain.evaluation.templates import Templates

FAR_TARGETS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FPIR_TARGETS = (0.1, 0.01)
RANKS = (1, 5, 10)

_PAIRS_PER_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class TemplateVerification:
    """1:1: the rates, and the worst pairs as rows of the templates."""

    scores: ScoreReport
    worst: WorstPairs


def verify_templates(
    templates: Templates,
    pairs: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
    far_targets: Sequence[float] = FAR_TARGETS,
    far_rule: str = "honest",
    num_worst: int = 12,
) -> TemplateVerification:
    """Scores pairs of templates.

    Args:
        templates: pooled.
        pairs: blocks of (template ids [P], template ids [P], bool [P] of one subject).
        far_targets: FARs to report TAR at.
        far_rule: how, see `FAR_RULES`.
        num_worst: false matches and misses to keep.

    Raises:
        FacetrainError: a template without faces, or pairs of one kind only.
    """
    kept: dict[bool, list[np.ndarray]] = {True: [], False: []}
    worst = {same: Extremes(num_worst, highest=not same) for same in kept}
    for left_ids, right_ids, is_same in pairs:
        left, right = templates.rows(left_ids), templates.rows(right_ids)
        scores = pair_cosines(templates.unit, left, right)
        for same in kept:
            chosen = np.asarray(is_same, dtype=bool) == same
            kept[same].append(scores[chosen])
            worst[same].add(scores[chosen], left[chosen], right[chosen])
    empty = [np.empty(0, np.float32)]
    genuine, impostor = (np.concatenate(kept[same] or empty) for same in (True, False))
    return TemplateVerification(
        ScoreReport.of(genuine, impostor, far_targets, far_rule),
        WorstPairs(worst[False].pairs(), worst[True].pairs()),
    )


def pair_cosines(unit: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines float32 [P] of rows of unit embeddings, block by block."""
    scores = np.empty(len(left), dtype=np.float32)
    for start in range(0, len(left), _PAIRS_PER_BLOCK):
        block = slice(start, start + _PAIRS_PER_BLOCK)
        np.einsum("pd,pd->p", unit[left[block]], unit[right[block]], out=scores[block])
    return scores


@dataclass(frozen=True, eq=False)
class GallerySearch:
    """1:N: the result of each gallery by name, in order."""

    galleries: dict[str, OpenSetResult]

    def mean(self) -> dict[str, Any]:
        """Rank rates and TPIR at FPIR, averaged over the galleries; None where one has none."""
        results = list(self.galleries.values())
        points = list(zip(*(result.dir_at_far for result in results), strict=True))
        return {
            "rank": {
                str(rank): float(np.mean([result.cmc[rank - 1] for result in results]))
                for rank in RANKS
                if all(rank <= len(result.cmc) for result in results)
            },
            "tpir_at_fpir": [
                {
                    "far_target": group[0].far_target,
                    "tar": None
                    if any(point.tar is None for point in group)
                    else float(np.mean([point.tar for point in group])),
                }
                for group in points
            ],
        }


def search_galleries(
    templates: Templates,
    galleries: dict[str, tuple[np.ndarray, np.ndarray]],
    probes: tuple[np.ndarray, np.ndarray],
    backend: str = "auto",
    far_targets: Sequence[float] = FPIR_TARGETS,
) -> GallerySearch:
    """Searches all probes in each gallery; those whose subject is not in it are its unmated ones.

    Args:
        templates: pooled.
        galleries: by name, (template ids [T], subjects [T]).
        probes: (template ids [P], subjects [P]).
        backend: search engine, see `build_index`.
        far_targets: FPIRs to report TPIR at.

    Raises:
        FacetrainError: no gallery, a template without faces, or no mated probe.
    """
    if not galleries:
        raise FacetrainError("1:N search: no gallery given")
    probe_rows = templates.rows(probes[0], "probes")
    results = {}
    for name, (ids, subjects) in galleries.items():
        gallery = templates.unit[templates.rows(ids, f"gallery {name}")]
        results[name] = identify(
            build_index(gallery, backend),
            np.asarray(subjects),
            templates.unit[probe_rows],
            np.asarray(probes[1]),
            far_targets=far_targets,
        )
    return GallerySearch(results)
