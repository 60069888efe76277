"""The same photograph more than once: exactly, or encoded, scaled or cut anew.

Copies are found by their bytes. Near copies are images with nearly the same embedding; a person at
another moment comes close too, so pictures must also agree as pictures: a correlation of two small
grey ones, the second also mirrored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from facetrain.evaluation.search import SearchIndex

_SIDE = 16
_ROWS_PER_BLOCK = 2**13


@dataclass(frozen=True, eq=False)
class DuplicatePairs:
    """Pairs of images that are one photograph.

    Attributes:
        first: int64 [P], rows, each below its `second`.
        second: int64 [P].
        cosines: float32 [P], of the embeddings; 1 for exact copies.
        agreements: float32 [P], of the pictures; 1 for exact copies.
    """

    first: np.ndarray
    second: np.ndarray
    cosines: np.ndarray
    agreements: np.ndarray

    def __len__(self) -> int:
        return len(self.first)


def exact_pairs(digests: np.ndarray) -> DuplicatePairs:
    """Each image that repeats an earlier one, with the first of its kind.

    Args:
        digests: uint64 [N, 2], a 128-bit hash of each image's bytes.
    """
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    sorted_ = digests[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (sorted_[1:] != sorted_[:-1]).any(axis=1)
    # lexsort is stable, so the first of each run is the first image.
    first_of_run = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    first, second = first_of_run[~begins], order[~begins]
    ones = np.ones(len(first), np.float32)
    by_row = np.argsort(second)
    return DuplicatePairs(first[by_row], second[by_row], ones, ones)


def near_pairs(
    index: SearchIndex,
    read_image: Callable[[int], np.ndarray],
    *,
    min_cosine: float = 0.88,
    min_agreement: float = 0.93,
    max_copies: int = 16,
    progress: Callable[[int], None] | None = None,
) -> DuplicatePairs:
    """Pairs with like embeddings and like pictures; only candidates' pictures are read.

    Args:
        index: over the unit embeddings of all images.
        read_image: uint8 RGB image of a row.
        min_cosine: of the embeddings.
        min_agreement: of the pictures, see `picture_agreement`.
        max_copies: nearest neighbours looked at per image.
        progress: called with the number of images done.
    """
    found: list[tuple[int, int, float, float]] = []
    num_images = len(index.embeddings)
    for start in range(0, num_images, _ROWS_PER_BLOCK):
        queries = index.embeddings[start : start + _ROWS_PER_BLOCK]
        scores, neighbours = index.search(queries, min(max_copies + 1, num_images))
        lines, columns = np.nonzero(scores >= min_cosine)
        left, right = lines + start, neighbours[lines, columns]
        once = left < right
        for a, b, cosine in zip(
            left[once].tolist(),
            right[once].tolist(),
            scores[lines, columns][once].tolist(),
            strict=True,
        ):
            agreement = picture_agreement(read_image(a), read_image(b))
            if agreement >= min_agreement:
                found.append((a, b, cosine, agreement))
        if progress is not None:
            progress(start + len(queries))
    table = np.array(found, dtype=np.float64).reshape(-1, 4)
    pairs = table[:, :2].astype(np.int64)
    measures = table[:, 2:].astype(np.float32)
    return DuplicatePairs(pairs[:, 0], pairs[:, 1], measures[:, 0], measures[:, 1])


def picture_agreement(left: np.ndarray, right: np.ndarray) -> float:
    """Correlation, -1 to 1, of two uint8 RGB images as 16x16 grey ones; mirrored if that is more.

    Pictures of one flat shade agree with nothing.
    """
    small_left, small_right = _signature(left), _signature(right)
    mirrored = small_right[:, ::-1]
    return float(max((small_left * small_right).sum(), (small_left * mirrored).sum()))


def _signature(image: np.ndarray) -> np.ndarray:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float64)
    small -= small.mean()
    length = np.linalg.norm(small)
    return small / length if length > 0.0 else small


def group_duplicates(pairs: DuplicatePairs) -> list[np.ndarray]:
    """Groups of rows joined by pairs, int64 and ascending each, by their first row."""
    parent: dict[int, int] = {}

    def root(row: int) -> int:
        parent.setdefault(row, row)
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for a, b in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for row in sorted(parent):
        groups.setdefault(root(row), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in groups.values()]
