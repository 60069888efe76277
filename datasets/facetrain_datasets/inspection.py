"""What is in a set: images per identity, sizes, formats, and the images that cannot be read.

survey = survey_images(open_faces("faces.rec"))
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from facetrain_datasets.decode import BadImage, decode_photo, sample_indices
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_header import read_image_header
from facetrain_datasets.source import FaceSource

_CHUNK = 64


@dataclass
class ImageSurvey:
    """What the images looked at are.

    Attributes:
        num_checked: how many were read and decoded.
        num_bytes: of these together, as encoded.
        kinds: images by format and channels, such as "jpeg, colour".
        sizes: images by (width, height).
        bad: those that cannot be used, by ascending index.
    """

    num_checked: int = 0
    num_bytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    bad: list[BadImage] = field(default_factory=list)

    def add(self, other: ImageSurvey) -> None:
        """Adds what another survey has seen of images that come later."""
        self.num_checked += other.num_checked
        self.num_bytes += other.num_bytes
        self.kinds += other.kinds
        self.sizes += other.sizes
        self.bad += other.bad


@dataclass(frozen=True)
class LabelSurvey:
    """How images spread over identities.

    Attributes:
        num_images: in all.
        num_identities: with at least one image.
        gaps: int64, class ids without an image.
        counts: int64 [num_identities], images of each identity that has some, ascending.
    """

    num_images: int
    num_identities: int
    gaps: np.ndarray
    counts: np.ndarray


def survey_labels(labels: np.ndarray, num_classes: int) -> LabelSurvey:
    """Counts images per class; `labels` are int64 [num_images], 0 .. num_classes - 1."""
    counts = np.bincount(labels, minlength=num_classes)
    present = counts[counts > 0]
    return LabelSurvey(len(labels), len(present), np.flatnonzero(counts == 0), np.sort(present))


def survey_images(
    source: FaceSource,
    *,
    limit: int = 50_000,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> ImageSurvey:
    """Reads and decodes every image, or a seeded sample of `limit` when there are more.

    Raises:
        DatasetError: `limit` below 1.
    """
    indices = sample_indices(len(source), limit, seed)
    chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
    survey = ImageSurvey()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for part in pool.map(lambda chunk: _survey_chunk(source, chunk), chunks):
            survey.add(part)
            if progress is not None:
                progress(survey.num_checked)
    return survey


def _survey_chunk(source: FaceSource, indices: np.ndarray) -> ImageSurvey:
    survey = ImageSurvey(num_checked=len(indices))
    for index in indices.tolist():
        where = source.describe(index)
        try:
            data = source.read(index)
            height, width, _ = decode_photo(data, where).shape
        except (DatasetError, OSError) as error:
            survey.bad.append(BadImage(index, where, str(error)))
            continue
        survey.num_bytes += len(data)
        survey.sizes[width, height] += 1
        header = read_image_header(data)
        assert header is not None, "it was decoded"
        survey.kinds[f"{header.kind}, {'grey' if header.num_channels == 1 else 'colour'}"] += 1
    return survey
