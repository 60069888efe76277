"""How much of OpenCV's decoding speed is left when faces are read for training, format by format.

    python benchmarks/loader.py lfw112                    # any set of 112x112 faces
    python benchmarks/loader.py lfw112 --index 10000000   # and: opening an index of so many records

One core; formats take turns, whole batches and bare `cv2.imdecode` on the same images; medians.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from facetrain.report import Table
from facetrain_datasets.convert import convert
from facetrain_datasets.formats import open_faces
from facetrain_datasets.image_index import ImageIndex, open_index
from facetrain_datasets.loader_benchmark import LoaderReport, measure_loader
from facetrain_datasets.packed_strings import PackedStrings

FORMATS = ("rec", "tar", "parquet", "folder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faces", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-images", type=int, default=4000, help="per format and round")
    parser.add_argument("--index", type=int, default=0, help="records of an index to open")
    flags = parser.parse_args()
    source = open_faces(flags.faces)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for format in FORMATS:
            convert(source, folder / format, format)
        reports: dict[str, list[LoaderReport]] = {format: [] for format in FORMATS}
        for round_ in range(flags.rounds):
            for format in FORMATS:
                faces = open_faces(folder / format)
                reports[format].append(
                    measure_loader(faces, num_images=flags.num_images, seed=round_)
                )
        print(speeds(reports).to_text())
        if flags.index:
            print(f"\n{index_times(folder / 'many.rec', flags.index)}")


def speeds(reports: dict[str, list[LoaderReport]]) -> Table:
    """One row per format: medians over the rounds."""

    def median(of: list[float]) -> float:
        return float(np.median(of))

    return Table(
        ("format", "read, us", "batch, us", "imdecode, us", "share of imdecode's speed"),
        [
            (
                format,
                f"{median([r.stage_us['read'] for r in rounds]):.1f}",
                f"{median([r.whole_us for r in rounds]):.1f}",
                f"{median([r.bare_decode_us for r in rounds]):.1f}",
                f"{median([r.share_of_bare_decode for r in rounds]):.0%}",
            )
            for format, rounds in reports.items()
        ],
        "per image on one core, read, decoded, flipped and collated in batches of 128",
    )


def index_times(file: Path, num_images: int) -> str:
    """What opening an index of so many images takes."""
    file.touch()
    rows = np.arange(num_images)
    index = ImageIndex(
        identities=PackedStrings.of(["somebody"]),
        labels=np.zeros(num_images, np.int64),
        names=PackedStrings.of(f"key {row}" for row in range(num_images)),
        offsets=rows * 4096,
        lengths=np.full(num_images, 4000, np.int64),
    )
    open_index(file, "rec", [file], lambda: index)
    started = time.perf_counter()
    opened = open_index(file, "rec", [file], lambda: index)
    assert opened.offsets[-1] == rows[-1] * 4096
    milliseconds = 1e3 * (time.perf_counter() - started)
    return f"an index of {len(opened):,} records opens in {milliseconds:.1f} ms"


if __name__ == "__main__":
    main()
