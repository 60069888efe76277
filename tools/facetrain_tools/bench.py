"""What this machine can do: `facetrain bench loader PATH`, and `facetrain bench cluster`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from facetrain.command import parse_flags
from facetrain.report import Facts, Table
from facetrain_datasets.formats import open_faces
from facetrain_datasets.loader_benchmark import LoaderReport, measure_loader
from facetrain_tools.actions import Action, module_action, run_action
from facetrain_tools.progress import progress


@dataclass(frozen=True)
class LoaderFlags:
    """Read faces in training's order; print images per second of each stage and of the loader."""

    path: tyro.conf.Positional[Path]
    """A set of faces in any format."""
    format: str = "auto"
    """Name of the format, where it cannot be seen."""
    transforms: tuple[str, ...] = ("flip",)
    """Augmentations, in order."""
    num_images: int = 20_000
    """Images to read."""
    batch_size: int = 128
    """Images per batch."""
    num_workers: int = 0
    """Loader processes; 0 reads in this one."""
    image_size: int = 112
    """Height and width of the images."""
    allow_grey: bool = False
    """Take grey images."""


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    loader = Action(
        lambda rest: bench_loader(parse_flags(LoaderFlags, rest, "facetrain bench loader")),
        "PATH [--num-workers 4] [flags]",
        "images per second of reading, decoding, transforming, collating",
    )
    cluster = module_action(
        "facetrain_tools.cluster",
        "[--num-processes N] [--device cpu|cuda] [--out cluster.yaml]",
        "rates and links of this machine, for `facetrain plan --device cluster.yaml`",
    )
    return run_action("bench", {"loader": loader, "cluster": cluster}, arguments)


def bench_loader(flags: LoaderFlags) -> int:
    """Measures and prints; the exit code.

    Raises:
        DatasetError: faces that cannot be read.
    """
    source = open_faces(flags.path, flags.format)
    with progress("reading", 2 * flags.num_images) as done:
        report = measure_loader(
            source,
            image_size=flags.image_size,
            allow_grey=flags.allow_grey,
            transforms=flags.transforms,
            num_images=flags.num_images,
            batch_size=flags.batch_size,
            num_workers=flags.num_workers,
            progress=done,
        )
    facts = {
        "faces": f"{flags.path} ({len(source):,} images, {report.image_bytes:,.0f} bytes each)",
        "measured": f"{report.num_images:,} images, batches of {flags.batch_size}",
    }
    if note := getattr(source, "note", ""):
        facts["note"] = note
    print("\n\n".join([Facts(facts).to_text(), stage_table(report).to_text(), verdict(report)]))
    return 0


def stage_table(report: LoaderReport) -> Table:
    """One row per stage, then whole batches, and OpenCV's decoder alone beside them."""
    rows = [
        (name, *_speed(us), f"{us / report.whole_us:.0%}") for name, us in report.stage_us.items()
    ]
    rows.append(("whole batches", *_speed(report.whole_us), "100%"))
    bare = report.bare_decode_us
    rows.append(("cv2.imdecode alone", *_speed(bare), f"{bare / report.whole_us:.0%}"))
    return Table(
        ("one core", "us per image", "img/s", "of the time"),
        rows,
        f"whole batches: {report.share_of_bare_decode:.0%} of cv2.imdecode's speed; the stages are "
        "timed one by one, so they need not add up",
    )


def verdict(report: LoaderReport) -> str:
    """What the loader delivers, what bounds it, and what to do about that."""
    where = f"{report.num_workers} loader processes" if report.num_workers else "this process alone"
    advice = {
        "read": "put the set on a faster disk, or convert it to rec (facetrain data convert)",
        "decode": "more loader processes (--num-workers) decode more",
        "transform": "leave out the dearest augmentation, or use more loader processes",
        "collate": "more loader processes (--num-workers) help",
    }[report.bound_by]
    return f"{report.images_per_s:,.0f} img/s with {where}; bound by {report.bound_by}: {advice}"


def _speed(us_per_image: float) -> tuple[str, str]:
    return f"{us_per_image:.1f}", f"{1e6 / us_per_image:,.0f}"
