"""An evaluation that a run ends with: a named set of images and how to score their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from facetrain.distributed import Communicator, even_counts, raise_together
from facetrain.embedder import Embedder, embed_images
from facetrain.errors import bad_input_errors, bad_input_message
from facetrain.evaluation.identification import IdentityResult, evaluate_identities
from facetrain.evaluation.metrics import ScoreReport
from facetrain.evaluation.verification import VerificationResult, verify


class EvaluationResult(Protocol):
    """What every evaluation gives."""

    @property
    def scores(self) -> ScoreReport: ...

    def to_dict(self) -> dict[str, Any]: ...


class EvaluationTask(Protocol):
    """One evaluation, of any model."""

    @property
    def title(self) -> str: ...

    @property
    def images(self) -> Sequence[np.ndarray]:
        """uint8 RGB [H, W, 3] each; decoded when asked for."""

    @property
    def headline(self) -> str:
        """Name of the task's own figure, beside TAR at FAR."""

    def score(self, embeddings: np.ndarray) -> tuple[float, EvaluationResult]:
        """The headline figure and everything else, from embeddings [M, D] of the images."""


@dataclass(frozen=True)
class PairsTask:
    """1:1 verification on listed pairs, `left` and `right` being image numbers."""

    title: str
    images: Sequence[np.ndarray]
    left: np.ndarray
    right: np.ndarray
    is_same: np.ndarray
    num_folds: int = 10
    headline: str = "accuracy"

    def score(self, embeddings: np.ndarray) -> tuple[float, VerificationResult]:
        result = verify(embeddings, self.left, self.right, self.is_same, self.num_folds)
        return result.accuracy, result


@dataclass(frozen=True)
class IdentitiesTask:
    """Every image of some identities against every other, through a search index."""

    title: str
    images: Sequence[np.ndarray]
    labels: np.ndarray
    search: str = "auto"
    headline: str = "rank-1"

    def score(self, embeddings: np.ndarray) -> tuple[float, IdentityResult]:
        result = evaluate_identities(embeddings, self.labels, self.search)
        return result.rank1, result


@dataclass(frozen=True)
class SystemResult:
    """How one system (a trained network, a baseline) did at a task.

    Attributes:
        name: in tables and plots.
        description: what it is and where it ran.
        headline: the task's own figure.
        result: everything.
    """

    name: str
    description: str
    headline: float
    result: EvaluationResult


def embed_over_ranks(
    embedder: Embedder, images: Sequence[np.ndarray], communicator: Communicator
) -> np.ndarray:
    """Embeddings [M, D] of all images, on every rank; each rank embeds its share of them.

    One all-gather of 4 M D bytes.

    Raises:
        FacetrainError: an image cannot be used; on every rank, whichever found it.
    """
    counts = even_counts(len(images), communicator.world_size)
    first = sum(counts[: communicator.rank])
    problem = None
    try:
        own = embed_images(
            embedder, (images[row] for row in range(first, first + counts[communicator.rank]))
        )
    except bad_input_errors() as error:
        problem = bad_input_message(error)
    raise_together(communicator, problem)
    rows = torch.from_numpy(own).to(communicator.device)
    return communicator.all_gather(rows, counts).cpu().numpy()
