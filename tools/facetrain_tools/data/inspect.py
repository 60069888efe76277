"""`facetrain data inspect PATH`: what is in a set of faces, in any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.report import Block, Facts, Figure, PictureRow, Pictures, Section, Table, Text
from facetrain.report.bars import bar_chart
from facetrain.report.tables import percent
from facetrain_datasets.formats import recognise_format
from facetrain_datasets.inspection import ImageSurvey, LabelSurvey, survey_images, survey_labels
from facetrain_datasets.source import FaceSource
from facetrain_tools.data.lists import write_list
from facetrain_tools.data.pictures import picture_of
from facetrain_tools.data.sets import Rows, open_set
from facetrain_tools.output import output_folder, write_report
from facetrain_tools.progress import progress

BROKEN_FILE = "broken.csv"

_BINS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_NUM_SHOWN = 10
_SHEET = (12, 8)  # identities, images of each


@dataclass(frozen=True)
class InspectFlags:
    """Count identities and images, decode images, and show some."""

    path: tyro.conf.Positional[Path]
    """Folder of identities, .rec, .tar, .parquet, or list."""
    format: str = "auto"
    """Format of the data: folder, list, rec, tar or parquet; auto goes by its name."""
    limit: int = 50_000
    """Images to decode; of a larger set as many, chosen by the seed."""
    seed: int = 0
    """For the choice of images to decode and to show."""
    out: Path | None = None
    """Folder for broken.csv and report.html; default: a new one under runs/."""


def main(arguments: Sequence[str]) -> int:
    """`facetrain data inspect` with the flags given; the exit code."""
    return run_inspect(parse_flags(InspectFlags, arguments, "facetrain data inspect"))


def run_inspect(flags: InspectFlags) -> int:
    """Looks, prints and writes the report; the exit code.

    Raises:
        FacetrainError, DatasetError: bad input, in one line.
    """
    source = open_set(flags.path, flags.format)
    folder = output_folder("data-inspect", flags.out, flags.path)
    labels = survey_labels(source.labels, len(source.identities))
    with progress("decoding", min(len(source), flags.limit)) as done:
        images = survey_images(source, limit=flags.limit, seed=flags.seed, progress=done)
    write_list(
        folder / BROKEN_FILE,
        ("index", "image", "identity", "reason"),
        (
            (bad.index, bad.where, source.identities[source.labels.item(bad.index)], bad.reason)
            for bad in images.bad
        ),
    )
    facts = _facts(flags, source, labels, images)
    per_identity = per_identity_table(labels.counts)
    sizes, kinds = _count_table("size", images), _kind_table(images)
    print(*(b.to_text() for b in (facts, per_identity, sizes, kinds)), sep="\n\n")
    write_report(
        folder,
        f"Inspection of {flags.path.name}",
        [
            Section("Result", [facts]),
            Section("Images per identity", [_histogram(per_identity), per_identity]),
            Section("Images", [sizes, kinds]),
            *_broken_sections(source, labels, images),
            Section("Some identities", [_sheet(source, labels, flags.seed)]),
        ],
        summary=f"facetrain data inspect {flags.path}",
        flags=flags,
        results={
            "num_images": labels.num_images,
            "num_identities": labels.num_identities,
            "num_label_gaps": len(labels.gaps),
            "images_per_identity": _quantiles(labels.counts),
            "num_checked": images.num_checked,
            "num_broken": len(images.bad),
            "sizes": {f"{w}x{h}": count for (w, h), count in images.sizes.most_common()},
            "kinds": dict(images.kinds),
        },
    )
    return 0


def per_identity_table(counts: np.ndarray) -> Table:
    """Identities and images by images per identity."""
    rows = []
    for low, high in zip(_BINS, (*_BINS[1:], None), strict=True):
        chosen = counts[(counts >= low) & (counts < high if high is not None else True)]
        if len(chosen):
            name = f"{low:,} or more" if high is None else _span(low, high - 1)
            share = percent(chosen.sum() / counts.sum())
            rows.append((name, f"{len(chosen):,}", f"{chosen.sum():,}", share))
    return Table(("images per identity", "identities", "images", "share of images"), rows)


def _histogram(per_identity: Table) -> Figure:
    counts = {row[0]: int(row[1].replace(",", "")) for row in per_identity.rows}
    drawing = bar_chart(counts, "images per identity", "identities")
    return Figure(drawing, "Identities by the number of their images")


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _quantiles(counts: np.ndarray) -> dict[str, float]:
    return {
        "min": float(counts.min()),
        "median": float(np.median(counts)),
        "mean": float(counts.mean()),
        "max": float(counts.max()),
    }


def _facts(
    flags: InspectFlags, source: FaceSource, labels: LabelSurvey, images: ImageSurvey
) -> Facts:
    q = _quantiles(labels.counts)
    kind = recognise_format(flags.path) if flags.format == "auto" else flags.format
    num_good = images.num_checked - len(images.bad)
    all_or_some = "all" if images.num_checked == len(source) else f"{images.num_checked:,} chosen"
    gaps = ", ".join(map(str, labels.gaps[:_NUM_SHOWN].tolist()))
    more = ", ..." if len(labels.gaps) > _NUM_SHOWN else ""
    return Facts(
        {
            "data": f"{flags.path} ({kind})",
            "images": f"{labels.num_images:,} of {labels.num_identities:,} identities",
            "per identity": f"{q['min']:.0f} to {q['max']:.0f}, median {q['median']:g}, "
            f"mean {q['mean']:.1f}",
            "label gaps": f"{len(labels.gaps):,} class ids without images ({gaps}{more})"
            if len(labels.gaps)
            else "none",
            "decoded": f"{all_or_some}, {images.num_bytes / max(num_good, 1) / 1024:.1f} KiB each",
            "broken": f"{len(images.bad):,}"
            + (f", the first is {images.bad[0].where}" if images.bad else ""),
        }
    )


def _count_table(what: str, images: ImageSurvey) -> Table:
    common = images.sizes.most_common(_NUM_SHOWN)
    rest = images.sizes.total() - sum(count for _, count in common)
    rows = [(f"{width}x{height}", f"{count:,}") for (width, height), count in common]
    if rest:
        rows.append((f"{len(images.sizes) - len(common):,} other sizes", f"{rest:,}"))
    return Table((what, "images"), rows)


def _kind_table(images: ImageSurvey) -> Table:
    return Table(("format", "images"), [(k, f"{n:,}") for k, n in images.kinds.most_common()])


def _broken_sections(source: FaceSource, labels: LabelSurvey, images: ImageSurvey) -> list[Section]:
    blocks: list[Block] = []
    if images.bad:
        shown = images.bad[: 3 * _NUM_SHOWN]
        rows = [(bad.where, bad.reason.removeprefix(f"{bad.where}: ")) for bad in shown]
        caption = f"{len(images.bad):,} in all, see {BROKEN_FILE}"
        blocks.append(Table(("broken image", "why"), rows, caption))
    if len(labels.gaps):
        names = ", ".join(source.identities[row] for row in labels.gaps[:_NUM_SHOWN].tolist())
        blocks.append(
            Text(
                f"{len(labels.gaps):,} class ids have no image ({names}). Training would carry a "
                "center for each; `facetrain data select` numbers the classes anew."
            )
        )
    return [Section("Faults", blocks)] if blocks else []


def _sheet(source: FaceSource, labels: LabelSurvey, seed: int) -> Pictures:
    """Some identities, chosen by the seed, each with its first images."""
    num_identities, num_images = _SHEET
    present = np.setdiff1d(np.arange(len(source.identities)), labels.gaps)
    if len(present) > num_identities:
        chosen = np.random.default_rng(seed).choice(present, num_identities, replace=False)
        present = np.sort(chosen)
    rows = Rows(source.labels)
    return Pictures(
        [
            PictureRow(
                source.identities[identity],
                [picture_of(source, row) for row in rows.of(identity, num_images)],
            )
            for identity in present.tolist()
        ]
    )
