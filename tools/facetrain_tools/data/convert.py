"""`facetrain data convert FROM TO`: a set of faces in another format, verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain_datasets.convert import convert
from facetrain_datasets.formats import FORMATS, format_of_name, open_faces
from facetrain_tools.output import refuse_inside
from facetrain_tools.progress import progress


@dataclass(frozen=True)
class ConvertFlags:
    """Write a set of faces in another format and verify it; goes on where a call before stopped."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FROM")]
    """Folder of identities, .rec, .tar, .parquet, list, or a folder or pattern of such files."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TO")]
    """Folder to make."""
    to: str | None = None
    """Format to write: folder, list, rec, tar or parquet; default: what the name of TO ends with,
    else folder."""
    format: str = "auto"
    """Format of FROM, where its name does not tell."""
    images_per_file: int = 10_000
    """Images of a tar shard or Parquet file, and between two points to resume from."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    return run_convert(parse_flags(ConvertFlags, arguments, "facetrain data convert"))


def run_convert(flags: ConvertFlags) -> int:
    """Converts, prints what was written; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    format_name = format_to_write(flags.to, flags.out)
    refuse_inside(flags.out, flags.source)
    started = time.perf_counter()
    with progress("reading the index, %", 100) as show:
        source = open_faces(
            flags.source,
            flags.format,
            progress=lambda done, total: show(100 * done // total),
        )
    with progress("writing and verifying", 2 * len(source)) as show:
        result = convert(
            source,
            flags.out,
            format_name,
            images_per_file=flags.images_per_file,
            progress=lambda done, _: show(done),
        )
    resumed = f", {result.num_resumed:,} of them earlier" if result.num_resumed else ""
    print(
        f"{flags.out}  {format_name}, {result.num_images:,} images of {result.num_identities:,} "
        f"identities{resumed}, {time.perf_counter() - started:.1f} s\n"
        f"verified by checksum {result.checksum}"
    )
    return 0


def format_to_write(asked: str | None, out: Path) -> str:
    """The format that `--to` asks for, or the name of `out`.

    Raises:
        FacetrainError: there is no such format.
    """
    name = asked or format_of_name(out.name) or "folder"
    if name not in FORMATS:
        raise FacetrainError(f"--to {name}: choose one of {', '.join(FORMATS)}")
    return name
