"""`facetrain eval verification --model X --data DIR --pairs FILE`: how good a model is.

Prints the accuracy, TAR at FAR with thresholds, and everything the figures depend on: colour order,
normalisation, flip, distance, folds. With `--out` it also writes report.html and results.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from facetrain.command import parse_flags
from facetrain.embedder import embed_images
from facetrain.evaluation import VerificationResult, verify
from facetrain.model_files import load_embedder
from facetrain.report import Facts, Figure, Section, Table, plots, write_atomically, write_page
from facetrain.report.tables import percent, tar_table, threshold_table
from facetrain_datasets.protocols.lfw_pairs import read_lfw_pairs
from facetrain_tools.progress import progress

REPORT_FILE = "report.html"
RESULTS_FILE = "results.json"

_DEFAULT_FOLDS = 10


@dataclass(frozen=True)
class VerificationFlags:
    """Verify the pairs of an LFW pair list: are both faces of one person?"""

    model: Path
    """An .onnx file, the model.pt of a run, a run folder, or (with --backbone) a state dict."""
    data: Path
    """Folder of aligned 112x112 images, one folder per person."""
    pairs: Path
    """Pair list in LFW's format, such as pairs.txt."""
    flip: bool = False
    """Add the embedding of the mirrored face."""
    color: Literal["rgb", "bgr"] | None = None
    """Channel order the model is fed; default: what its file says, RGB where it says nothing."""
    backbone: str | None = None
    """Name of the backbone when --model is a state dict of arcface_torch."""
    folds: int | None = None
    """Folds of the accuracy; default: the list's, 10 where it has none."""
    batch_size: int = 64
    """Images per forward pass."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; auto is a GPU where there is one that can run it."""
    allow_grey: bool = False
    """Take grey images, their one channel repeated; otherwise they are refused."""
    out: Path | None = None
    """Folder for report.html and results.json."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval verification` with the flags given; the exit code."""
    return run_verification(
        parse_flags(VerificationFlags, arguments, "facetrain eval verification")
    )


def run_verification(flags: VerificationFlags) -> int:
    """Evaluates, prints, and writes the report if asked to; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    pair_list = read_lfw_pairs(flags.pairs)
    pairs = pair_list.resolve(flags.data)
    embedder = load_embedder(
        flags.model,
        device=flags.device,
        color=flags.color,
        backbone=flags.backbone,
    )
    images = pairs.images(
        image_size=embedder.preprocessing.image_size,
        allow_grey=flags.allow_grey,
    )
    started = time.perf_counter()
    with progress("embedding", len(images)) as done:
        embeddings = embed_images(
            embedder, images, batch_size=flags.batch_size, flip=flags.flip, progress=done
        )
    images_per_s = len(images) / (time.perf_counter() - started)
    num_folds = flags.folds
    if num_folds is None:
        num_folds = pairs.num_folds if pairs.num_folds > 1 else _DEFAULT_FOLDS
    result = verify(embeddings, pairs.left, pairs.right, pairs.is_same, num_folds)
    facts = Facts(
        {
            "model": f"{flags.model} ({embedder.describe()})",
            "pairs": f"{flags.pairs} ({len(pairs):,} pairs of {len(images):,} images)",
            "preprocessing": embedder.preprocessing.describe(),
            "flip": "f(x) + f(mirrored x)" if flags.flip else "no",
            "distance": "squared L2 of unit embeddings, d = 2 - 2 cos",
            "folds": f"{num_folds}, {result.fold_rule}",
            "speed": f"{images_per_s:,.0f} img/s",
        }
    )
    print(
        "\n\n".join(
            [
                facts.to_text(),
                accuracy_table(result).to_text(),
                threshold_table(result.scores).to_text(),
            ]
        )
    )
    if flags.out is not None:
        write_report(flags, result, facts)
        print(f"\nreport  {(flags.out / REPORT_FILE).resolve()}")
    return 0


def accuracy_table(result: VerificationResult) -> Table:
    """The headline: accuracy over the folds, EER, AUC and the best threshold."""
    return Table(
        header=("accuracy", "+-", "EER", "AUC", "best cosine", "best squared L2"),
        rows=[
            (
                percent(result.accuracy),
                percent(result.accuracy_std),
                percent(result.scores.eer),
                f"{result.scores.auc:.4f}",
                f"{result.threshold_cosine:.4f}",
                f"{result.threshold_squared_l2:.4f}",
            )
        ],
        caption=f"accuracy: mean and standard deviation of {len(result.folds.accuracies)} folds; "
        "best: the threshold with the highest accuracy on all pairs",
    )


def write_report(flags: VerificationFlags, result: VerificationResult, facts: Facts) -> None:
    """Writes report.html and results.json into `flags.out`."""
    assert flags.out is not None
    scores = result.scores
    write_page(
        flags.out / REPORT_FILE,
        f"Verification of {flags.model.name}",
        [
            Section("Result", [accuracy_table(result), tar_table({flags.model.name: scores})]),
            Section(
                "Curves",
                [
                    Figure(
                        plots.roc_curves({flags.model.name: scores.roc}),
                        "ROC: share of genuine pairs accepted (TAR) over share of impostor pairs "
                        "accepted (FAR)",
                    ),
                    Figure(
                        plots.score_histogram(
                            scores.genuine, scores.impostor, result.threshold_cosine
                        ),
                        "Scores of all pairs, and the threshold with the highest accuracy",
                    ),
                ],
            ),
            Section("Thresholds", [threshold_table(scores)]),
            Section("What was used", [facts]),
        ],
        summary=f"{percent(result.accuracy)} +- {percent(result.accuracy_std)} on "
        f"{flags.pairs.name}",
    )
    content = {
        "flags": {name: _plain(value) for name, value in asdict(flags).items()},
        "used": dict(facts.values),
        **result.to_dict(),
    }
    write_atomically(flags.out / RESULTS_FILE, json.dumps(content, indent=1) + "\n")


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
