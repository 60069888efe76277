"""`facetrain export MODEL OUT.onnx`: a trained model for use elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from facetrain.command import one_line_errors, parse_flags
from facetrain.embedder import TorchEmbedder
from facetrain.errors import FacetrainError
from facetrain.evaluation.thresholds import Thresholds
from facetrain.export import export_onnx
from facetrain.model_files import load_embedder
from facetrain.report.tables import far_text


@dataclass(frozen=True)
class ExportFlags:
    """Write a model as ONNX, with its preprocessing and thresholds in the file, and check it."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run folder, one of its checkpoints, a model.pt, or (with --backbone) a state dict."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """The .onnx file to write."""
    thresholds: Path | None = None
    """A file that `facetrain eval calibrate` wrote, to go into the ONNX file."""
    backbone: str | None = None
    """Name of the backbone when the model is a state dict of arcface_torch."""


def main(arguments: Sequence[str]) -> int:
    """Export; the exit code, 2 for bad input."""
    try:
        return one_line_errors(
            lambda: export(parse_flags(ExportFlags, arguments, "facetrain export"))
        )
    except SystemExit as stop:  # --help
        return int(stop.code or 0)


def export(flags: ExportFlags) -> int:
    """Writes the file and says what is in it.

    Raises:
        FacetrainError: a model that cannot be exported, or files that cannot be used.
    """
    if flags.out.suffix != ".onnx":
        raise FacetrainError(f"{flags.out}: name a file that ends in .onnx")
    thresholds = None if flags.thresholds is None else Thresholds.load(flags.thresholds)
    embedder = load_embedder(flags.model, backbone=flags.backbone)
    if not isinstance(embedder, TorchEmbedder):
        raise FacetrainError(f"{flags.model}: is an ONNX model already")
    if thresholds is not None:
        facts = {"preprocessing": embedder.preprocessing.describe()}
        thresholds.check_usable_with(facts, flags.thresholds or Path())
    difference = export_onnx(embedder, flags.out, thresholds)
    megabytes = flags.out.stat().st_size / 1e6
    print(
        f"{flags.out}  {megabytes:.1f} MB, {embedder.describe()}, embeddings of "
        f"{embedder.embedding_size}, any batch size\n"
        f"fed with {embedder.preprocessing.describe()}; differs from torch by {difference:.1e}"
    )
    if thresholds is not None:
        fars = " ".join(far_text(point.far_target) for point in thresholds.points)
        print(f"thresholds for FAR {fars}, {thresholds.origin()}")
    return 0
