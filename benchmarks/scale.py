"""The tables of docs/scale.md: plans for 256 GPUs beside other strategies, in the model.

    python benchmarks/scale.py                 # two clusters, 1 M to 100 M identities; Markdown
    python benchmarks/scale.py --published     # figures that others have published, predicted

Columns: milliseconds a step of arcface_torch's eager class-sharded head, of the empirical best on
our kernel, of the best of all other strategies on our kernel, and of the plan; then the kernel's
gain (the first over the second) and the plan's gain (the best other over the plan), apart. "-" does
not fit. BatchNorm stays exact: one micro-batch everywhere, no sampling.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from facetrain.config import HeadConfig, ModelConfig, RunConfig
from facetrain.memory import MemoptError, format_bytes
from facetrain.planning.layers import BackboneModel
from facetrain.planning.problem import Problem, named_problem
from facetrain.planning.step import EAGER, Planner
from memopt.partition.search import Found

CLUSTERS = {
    "v100-32g": (64, 128, 256, 512, 1024, 3072),
    "h100-80g": (64, 128, 256, 512, 2048, 6144),
}
IDS = (1_000_000, 10_000_000, 100_000_000)
EMPIRICAL = "empirical best"
LOWEST_ROWS = 128


@dataclass(frozen=True)
class Published:
    """A throughput that somebody measured.

    Attributes:
        images_per_s: over all devices.
        mebibytes: of a device; 0: not published.
        sample_rate: of the classes in a step.
    """

    what: str
    device: str
    num_devices: int
    ids: int
    rows: int
    images_per_s: float
    mebibytes: int
    sample_rate: float = 1.0


# arcface_torch's speed table (8 x V100, IResNet-50 in AMP; its memory fits 128 images a GPU), and
# its 64 x 2080Ti.
PUBLISHED = (
    Published("class-sharded", "v100-32g", 8, 125_000, 128, 4824, 5306),
    Published("class-sharded", "v100-32g", 8, 1_000_000, 128, 3449, 9966),
    Published("class-sharded", "v100-32g", 8, 1_400_000, 128, 3043, 11_178),
    Published("class-sharded", "v100-32g", 8, 5_500_000, 128, 1389, 32_188),
    Published("PFC-0.1", "v100-32g", 8, 1_000_000, 128, 4803, 5620, 0.1),
    Published("PFC-0.1", "v100-32g", 8, 8_000_000, 128, 3565, 12_310, 0.1),
    Published("class-sharded", "rtx2080ti", 64, 10_000_000, 32, 4483, 0),
    Published("PFC-0.1", "rtx2080ti", 64, 10_000_000, 64, 12_600, 0, 0.1),
)


def config(backbone: str, sample_rate: float = 1.0) -> RunConfig:
    return RunConfig(
        model=ModelConfig(backbone=backbone),
        head=HeadConfig(margin="arcface", sample_rate=sample_rate),
    )


def cell(planner: Planner) -> list[str]:
    """One row of a table, behind identities and batch."""
    rows = planner.compare()
    others = {n: row for n, row in rows.items() if n != EAGER and isinstance(row, Found)}
    eager, empirical = rows[EAGER], rows[EMPIRICAL]
    plan: Found | None
    try:
        plan = planner.best()[0]
    except MemoptError:
        plan = None
    # The empirical best stands for what finds the same.
    name = min(others, key=lambda n: (round(others[n].outcome.time_us), n != EMPIRICAL), default="")
    best = others.get(name)

    def ms(row: object) -> str:
        return f"{row.outcome.time_us / 1e3:,.0f}" if isinstance(row, Found) else "-"

    def gain(slow: object, fast: object) -> str:
        if isinstance(slow, Found) and isinstance(fast, Found):
            return f"{slow.outcome.time_us / fast.outcome.time_us:.2f}x"
        return "fits" if isinstance(fast, Found) else ""

    return [
        ms(eager),
        ms(empirical),
        f"{ms(best)} ({name})" if best and name != EMPIRICAL else ms(best),
        ms(plan),
        format_bytes(plan.outcome.peak_bytes) if plan else "-",
        _kept(plan) if plan else "",
        gain(eager, empirical),
        gain(best, plan),
    ]


def _kept(plan: Found) -> str:
    counts: dict[str, int] = {}
    for option in plan.choice[:-1]:
        counts[option.detail] = counts.get(option.detail, 0) + option.span
    most = max(counts, key=lambda name: counts[name])
    return f"{most}; {plan.choice[-1].detail.split(', ')[0]}"


def tables(backbone: str, num_devices: int) -> None:
    """Markdown of both clusters."""
    for device, batches in CLUSTERS.items():
        base = named_problem(config(backbone), device, num_devices, 1, rows=LOWEST_ROWS)
        traced = BackboneModel(base)
        print(f"\n### {num_devices} x {device}, {backbone}\n")
        print(
            "| ids | images a GPU | eager class-sharded | empirical best | best other | plan | "
            "peak | keeps; head | kernel | plan |"
        )
        print("|---" * 10 + "|")
        for ids in IDS:
            for rows in batches:
                planner = Planner(replace(base, num_classes=ids, rows=rows), traced)
                shown = cell(planner)
                print(f"| {ids // 1_000_000} M | {rows} | {' | '.join(shown)} |", flush=True)


def published() -> None:
    """Predicted throughput of the eager head beside what was published."""
    print(
        "| who | devices | ids | published img/s | predicted | of published | published MB | "
        "predicted |"
    )
    print("|---" * 8 + "|")
    traced: dict[tuple[str, int], BackboneModel] = {}
    for one in PUBLISHED:
        problem: Problem = named_problem(
            config("iresnet50", one.sample_rate),
            one.device,
            one.num_devices,
            one.ids,
            rows=one.rows,
        )
        key = (one.device, one.rows)
        traced[key] = traced.get(key) or BackboneModel(problem)
        # The time that it would take, whether the model has it fit or not.
        unbound = replace(problem, memory_bytes=2**50)
        row = Planner(unbound, traced[key]).compare()[EAGER]
        assert isinstance(row, Found)
        speed = 1e6 * one.rows * one.num_devices / row.outcome.time_us
        published_mebibytes = f"{one.mebibytes:,}" if one.mebibytes else ""
        print(
            f"| {one.what} | {one.num_devices} x {one.device} | {one.ids:,} | "
            f"{one.images_per_s:,.0f} | {speed:,.0f} | {speed / one.images_per_s:.0%} | "
            f"{published_mebibytes} | {row.outcome.peak_bytes / 2**20:,.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", default="iresnet100")
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--published", action="store_true")
    options = parser.parse_args()
    if options.published:
        published()
    else:
        tables(options.backbone, options.gpus)


if __name__ == "__main__":
    main()
