"""How much of what is wrong with a set `facetrain data clean`, `overlap` and `dedupe` find.

    python benchmarks/curation.py lfw112 --model mobilefacenet.onnx [--features lfw112.npy]

Faults of known kind are planted in a real set, by a seed, five times over: images moved to another
person, strangers put in, identities cut in two, pairs of identities merged, people shared by two
halves of the set, changed copies of pictures. Precision counts faults that the set had before as
errors, so it is a lower bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Set
from pathlib import Path

import cv2
import numpy as np

from facetrain.curation.alike import shared_identities, split_identities
from facetrain.curation.centers import identity_centers
from facetrain.curation.duplicates import near_pairs
from facetrain.curation.levels import measure_levels
from facetrain.curation.mixed import mixed_identities
from facetrain.curation.suspects import SuspectThresholds, find_suspects
from facetrain.embedder import embed_images
from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.search import build_index
from facetrain.model_files import load_embedder
from facetrain.report import Table
from facetrain.report.tables import percent
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.formats import open_faces

NUM_SEEDS = 5
NUM_MOVED = NUM_STRANGERS = 150
NUM_SPLIT = NUM_MERGED = 50
NUM_SHARED = 300
NUM_COPIED = 200


def _jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))


def _moved(image: np.ndarray, scale: float, shift: float) -> np.ndarray:
    height, width = image.shape[:2]
    matrix = np.array(
        [[scale, 0.0, (1 - scale) * width / 2 + shift], [0.0, scale, (1 - scale) * height / 2]]
    )
    return cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "JPEG quality 50": lambda image: _jpeg(image, 50),
    "JPEG quality 20": lambda image: _jpeg(image, 20),
    "half the resolution": lambda image: cv2.resize(
        cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), image.shape[1::-1]
    ),
    "brighter by 20 %": lambda image: cv2.convertScaleAbs(image, alpha=1.2, beta=10),
    "grey": lambda image: np.repeat(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2),
    "2 pixels to the side": lambda image: _moved(image, 1.0, 2.0),
    "5 % larger": lambda image: _moved(image, 1.05, 0.0),
    "mirrored": lambda image: np.ascontiguousarray(image[:, ::-1]),
}


class Score:
    """Counts over the seeds."""

    def __init__(self) -> None:
        self.planted = self.found = self.listed = 0

    def add(self, planted: Set[object], listed: Set[object]) -> None:
        self.planted += len(planted)
        self.listed += len(listed)
        self.found += len(planted & listed)

    def row(self, name: str) -> tuple[str, ...]:
        recall = percent(self.found / max(self.planted, 1), 1)
        precision = percent(self.found / max(self.listed, 1), 1)
        return name, f"{self.planted:,}", f"{self.listed:,}", recall, precision


def table(scores: dict[str, Score]) -> str:
    header = ("fault", "planted", "listed", "recall", "precision")
    return Table(header, [score.row(name) for name, score in scores.items()]).to_text()


def labels_with_faults(
    labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, set[object]]]:
    """Labels in which every kind of fault is planted, and what was planted."""
    labels, truth = labels.copy(), {}
    counts = np.bincount(labels)
    people = np.flatnonzero(counts >= 3)
    moved = rng.choice(np.flatnonzero(counts[labels] >= 3), NUM_MOVED, replace=False)
    strangers = rng.choice(np.flatnonzero(counts[labels] == 1), NUM_STRANGERS, replace=False)
    origin = labels[moved]
    places = np.searchsorted(people, origin) + rng.integers(1, len(people), NUM_MOVED)
    labels[moved] = people[places % len(people)]
    labels[strangers] = rng.choice(people, NUM_STRANGERS)
    truth["moved"], truth["strangers"] = set(moved.tolist()), set(strangers.tolist())
    cut = rng.choice(np.flatnonzero(counts >= 6), NUM_SPLIT, replace=False)
    truth["splits"] = set()
    for new, person in enumerate(cut.tolist(), len(counts)):
        rows = rng.permutation(np.flatnonzero(labels == person))
        labels[rows[: len(rows) // 2]] = new
        truth["splits"].add((person, new))
    rest = rng.permutation(np.setdiff1d(people, cut))[: 2 * NUM_MERGED].reshape(-1, 2)
    for kept, gone in rest.tolist():
        labels[labels == gone] = kept
    truth["merges"] = set(rest[:, 0].tolist())
    return labels, truth


def clean(embeddings: np.ndarray, labels: np.ndarray) -> str:
    names = (
        "moved to another person: listed as mislabelled",
        "moved to another person: listed with the right name",
        "strangers: listed at all",
        "moved or strangers: listed at all",
        "split identities",
        "merged identities",
    )
    scores = {name: Score() for name in names}
    for seed in range(NUM_SEEDS):
        planted, truth = labels_with_faults(labels, np.random.default_rng(seed))
        num_classes = int(planted.max()) + 1
        centers = identity_centers(embeddings, planted, num_classes)
        index = build_index(centers.unit())
        levels = measure_levels(centers, index)
        splits = split_identities(centers, index, levels.same_person)
        pairs = np.stack([splits.left, splits.right], axis=1)
        thresholds = SuspectThresholds(levels.outlier, levels.alike)
        suspects = find_suspects(embeddings, planted, num_classes, thresholds, pairs)
        wrong = suspects.rows[suspects.is_mislabelled].tolist()
        # The right name is any under which images of that person now stand.
        nearest = suspects.nearest[suspects.is_mislabelled].tolist()
        right = {
            row
            for row, name in zip(wrong, nearest, strict=True)
            if labels[row] in labels[planted == name]
        }
        listed = set(suspects.rows.tolist())
        found: list[tuple[Set[object], Set[object]]] = [
            (truth["moved"], set(wrong)),
            (truth["moved"], right),
            (truth["strangers"], listed - truth["moved"]),
            (truth["moved"] | truth["strangers"], listed),
            (truth["splits"], set(map(tuple, pairs.tolist()))),
            (
                truth["merges"],
                {m.identity for m in mixed_identities(embeddings, planted, levels.strangers)},
            ),
        ]
        for name, (expected, got) in zip(names, found, strict=True):
            scores[name].add(expected, got)
    return table(scores)


def overlap(embeddings: np.ndarray, labels: np.ndarray) -> str:
    """Half of each shared person's images in either set, all others in one of them."""
    stds = (2.0, 3.0, 4.0, 5.0)
    kinds = {"of 2 or 3 images": (2, 4), "of 4 or more images": (4, np.inf)}
    scores = {(kind, n): Score() for kind in kinds for n in stds}
    for seed in range(NUM_SEEDS):
        rng = np.random.default_rng(seed)
        counts = np.bincount(labels)
        for kind, (low, high) in kinds.items():
            people = np.flatnonzero((counts >= low) & (counts < high))
            shared = rng.choice(people, min(NUM_SHARED, len(people)), replace=False)
            in_second = rng.integers(0, 2, len(counts)).astype(bool)[labels]
            for person in shared.tolist():
                rows = rng.permutation(np.flatnonzero(labels == person))
                in_second[rows] = np.arange(len(rows)) >= len(rows) // 2
            sets = [
                identity_centers(embeddings, labels, len(counts), chosen)
                for chosen in (~in_second, in_second)
            ]
            indexes = [build_index(centers.unit()) for centers in sets]
            levels = [measure_levels(*pair) for pair in zip(sets, indexes, strict=True)]
            for n in stds:
                threshold = max(level.nearest.above(n) for level in levels)
                pairs = shared_identities(sets[0], sets[1], indexes[1], threshold)
                listed = set(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
                scores[kind, n].add({(person, person) for person in shared.tolist()}, listed)
    return table({f"shared people {kind}, {n:g} deviations": s for (kind, n), s in scores.items()})


def dedupe(
    embeddings: np.ndarray, images: DecodedImages, embed: Callable[[list[np.ndarray]], np.ndarray]
) -> str:
    """Changed copies of some images are added to all; what else is listed, the set had before."""
    rows = np.random.default_rng(0).choice(len(images), NUM_COPIED, replace=False)
    scores = {}
    for name, change in CHANGES.items():
        copies = [change(images[row]) for row in rows.tolist()]
        unit = unit_embeddings(np.concatenate([embeddings, embed(copies)]))

        def read_image(row: int, copies: list[np.ndarray] = copies) -> np.ndarray:
            return images[row] if row < len(images) else copies[row - len(images)]

        pairs = near_pairs(build_index(unit), read_image)
        listed = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
        scores[f"copies, {name}"] = score = Score()
        planted = {(row, len(images) + place) for place, row in enumerate(rows.tolist())}
        score.add(planted, listed)
    return table(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="aligned faces of 112x112, such as LFW")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--features", type=Path, help="embeddings of all images by that model")
    arguments = parser.parse_args()
    source = open_faces(arguments.data)
    images = DecodedImages.of_source(source)
    embedder = load_embedder(arguments.model)
    if arguments.features is None:
        embeddings = embed_images(embedder, images)
    else:
        embeddings = np.load(arguments.features)
    labels = np.asarray(source.labels)
    print(f"{len(labels):,} images of {len(source.identities):,} identities, {NUM_SEEDS} seeds\n")
    print(clean(embeddings, labels), overlap(embeddings, labels), sep="\n\n", end="\n\n")
    print(dedupe(embeddings, images, lambda copies: embed_images(embedder, copies)))


if __name__ == "__main__":
    main()
