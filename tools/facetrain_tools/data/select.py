"""`facetrain data select FROM TO --without LIST.csv`: a set without what a reviewed list names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain_datasets.convert import convert
from facetrain_datasets.selected_faces import SelectedImages
from facetrain_tools.data.convert import format_to_write
from facetrain_tools.data.lists import listed_images
from facetrain_tools.data.sets import open_set
from facetrain_tools.output import refuse_inside
from facetrain_tools.progress import progress


@dataclass(frozen=True)
class SelectFlags:
    """Write a set without the images or identities of lists; the set itself stays as it is."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FROM")]
    """Folder of identities, .rec, .tar, .parquet, or list: the set the lists were made of."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TO")]
    """Folder to make."""
    without: tuple[Path, ...]
    """Lists as dedupe, clean and overlap write them; shorten them first to what you agree with."""
    min_images: int = 1
    """Identities left with fewer images are left out too."""
    to: str | None = None
    """Format to write: folder, list, rec, tar or parquet; default: what the name of TO ends with,
    else folder."""
    format: str = "auto"
    """Format of FROM, where its name does not tell."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain data select` with the flags given; the exit code."""
    return run_select(parse_flags(SelectFlags, arguments, "facetrain data select"))


def run_select(flags: SelectFlags) -> int:
    """Writes the set, prints what was left out; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, or nothing is left.
    """
    source = open_set(flags.source, flags.format)
    format_name = format_to_write(flags.to, flags.out)
    refuse_inside(flags.out, flags.source)
    kept = np.ones(len(source), dtype=bool)
    for path in flags.without:
        kept &= ~listed_images(path, source)
    counts = np.bincount(source.labels[kept], minlength=len(source.identities))
    kept &= (counts >= flags.min_images)[source.labels]
    if not kept.any():
        raise FacetrainError(f"{flags.source}: nothing is left of {len(kept):,} images")
    selected = SelectedImages(source, np.flatnonzero(kept))
    with progress("writing and verifying", 2 * len(selected)) as show:
        result = convert(selected, flags.out, format_name, progress=lambda done, _: show(done))
    print(
        f"{flags.out}  {format_name}, {result.num_images:,} of {len(source):,} images, "
        f"{result.num_identities:,} of {len(source.identities):,} identities"
    )
    return 0
