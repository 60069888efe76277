"""Our search beside bare faiss calls, in one run, interleaved.

    python benchmarks/search.py                     # 100,000 x 512, 10,000 probes, top 10
    python benchmarks/search.py --gallery 20000 --probes 2000

Each round times one search of all probes by every engine; the table has the median seconds, the
ratio to the bare call of the same index, and the share of the true nearest entries found. "exact"
engines give the neighbours of float64, ties by row; a bare call gives them as fp32 has them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from facetrain.evaluation.embeddings import unit_embeddings
from facetrain.evaluation.search import build_index, import_faiss, search_blocks

Search = Callable[[], np.ndarray]


def engines(
    gallery: np.ndarray, probes: np.ndarray, k: int, names: Sequence[str]
) -> dict[str, tuple[Search, str]]:
    """By name: the search, giving rows [Q, k], and the engine it is compared with."""
    faiss = import_faiss()
    bare = faiss.IndexFlatIP(gallery.shape[1])
    bare.add(gallery)
    found: dict[str, tuple[Search, str]] = {
        "bare faiss IndexFlatIP": (lambda: bare.search(probes, k)[1], "bare faiss IndexFlatIP")
    }
    for name in names:
        index = build_index(gallery, name)
        print(f"{name}: {index.describe()}", flush=True)
        peer = "bare faiss IndexFlatIP"
        if not index.exact:
            peer = f"bare {name}"
            found[peer] = (lambda index=index: index._index.search(probes, k)[1], peer)
        found[name] = (lambda index=index: index.search(probes, k)[1], peer)
    blocks = np.array_split(gallery, 4)
    found["faiss over 4 blocks, index built anew"] = (
        lambda: search_blocks(blocks, probes, k, "faiss")[1],
        "bare faiss IndexFlatIP",
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gallery", type=int, default=100_000)
    parser.add_argument("--probes", type=int, default=10_000)
    parser.add_argument("--embedding-size", type=int, default=512)
    parser.add_argument("--neighbours", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backends", nargs="+", default=["faiss", "torch", "ivf", "hnsw"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    import_faiss().omp_set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    # Ten faces a person, and probes of the same people.
    people = rng.normal(size=(options.gallery // 10 + 1, options.embedding_size))

    def faces(num: int) -> np.ndarray:
        labels = rng.integers(0, len(people), num)
        return unit_embeddings(people[labels] + rng.normal(size=(num, options.embedding_size)))

    gallery, probes = faces(options.gallery), faces(options.probes)
    systems = engines(gallery, probes, options.neighbours, options.backends)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    rows = {}
    for _ in range(options.rounds):
        for name, (search, _) in systems.items():
            start = time.perf_counter()
            rows[name] = search()
            seconds[name].append(time.perf_counter() - start)
    exact = rows.get("torch", rows["bare faiss IndexFlatIP"])
    print(
        f"\n{options.gallery:,} x {options.embedding_size}, {options.probes:,} probes, top "
        f"{options.neighbours}, {options.threads} threads, median of {options.rounds}\n"
    )
    print(f"{'':<40}{'seconds':>9}{'ratio':>8}{'found':>10}")
    for name, (_, peer) in systems.items():
        median = statistics.median(seconds[name])
        ratio = median / statistics.median(seconds[peer])
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(rows[name], exact, strict=True))
        print(f"{name:<40}{median:>9.2f}{ratio:>8.2f}{hits / exact.size:>10.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
