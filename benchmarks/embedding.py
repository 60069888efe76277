"""Embedding of images from disk beside the model's own speed on images in memory, interleaved.

    python benchmarks/embedding.py --model mobilefacenet.onnx --pairs lfw_pairs.txt --data lfw112

The images are those of a pair list. Each round times a share of them twice: through
`embed_images`, reading and decoding as it goes, and by calls of the model on ready batches. The
table has images per second, the median of the rounds, and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from facetrain.embedder import embed_images
from facetrain.model_files import load_embedder
from facetrain_datasets.decoded_images import DecodedImages
from facetrain_datasets.protocols import open_pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--backbone")
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=0, help="in all; 0: all of the list")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    embedder = load_embedder(options.model, device=options.device, backbone=options.backbone)
    pairs = open_pairs(options.pairs, options.data)
    total = options.images or len(pairs.names)
    speeds: dict[str, list[float]] = {"from disk": [], "in memory": []}
    for part in np.array_split(np.arange(total), options.rounds):
        first = int(part[0])
        images = DecodedImages(
            lambda row, first=first: pairs.read(first + row),
            lambda row, first=first: pairs.describe(first + row),
            len(part),
            embedder.preprocessing.image_size,
            False,
        )
        start = time.perf_counter()
        found = embed_images(embedder, images, batch_size=options.batch_size)
        speeds["from disk"].append(len(part) / (time.perf_counter() - start))
        batches = torch.from_numpy(np.stack(images[:])).permute(0, 3, 1, 2)
        start = time.perf_counter()
        bare = [embedder.embed(batch) for batch in batches.split(options.batch_size)]
        speeds["in memory"].append(len(part) / (time.perf_counter() - start))
        assert (found == np.concatenate(bare)).all()
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{embedder.describe()}, {options.threads} threads, {total:,} images")
    print(f"{'':<12}{'img/s':>9}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:<12}{median:>9,.1f}{median / medians['in memory']:>8.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
