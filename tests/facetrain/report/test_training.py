"""The end of a run: the same figures on the terminal, on the page and in the JSON file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from facetrain.config import RunConfig
from facetrain.evaluation import evaluate_identities
from facetrain.evaluation.task import SystemResult
from facetrain.memory import MemoryReport
from facetrain.report.training import TrainingReport, summary, write_training_report
from facetrain.trainer import Totals, TrainingOutcome

MEMORY = MemoryReport(
    budget_bytes=200 * 2**20,
    plain_peak_bytes=300 * 2**20,
    predicted_peak_bytes=190 * 2**20,
    predicted_overhead=0.1,
    measured_peak_bytes=189 * 2**20,
    cuda_peak_bytes=None,
    measured_overhead=0.12,
    num_dropped=17,
    peak_rss_bytes=2**30,
)


@pytest.fixture
def report() -> TrainingReport:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 5)
    systems = []
    for name, noise in (("trained network", 0.3), ("untrained network", 3.0)):
        embeddings = rng.normal(size=(8, 16))[labels] + noise * rng.normal(size=(40, 16))
        result = evaluate_identities(embeddings, labels, "torch")
        systems.append(SystemResult(name, "a network", result.rank1, result))
    return TrainingReport(
        title="run <1>: people",
        command="facetrain train quickstart --seed 1",
        headline="rank-1",
        systems=systems,
        outcome=TrainingOutcome(40, False, 99.0, 0.25, Totals(2, 1)),
        memory=[MEMORY, dataclasses.replace(MEMORY, measured_peak_bytes=188 * 2**20)],
        metrics=[
            {"step": step, "loss": 9.0 - step / 10, "lr": 0.1, "images_per_s": float(step)}
            for step in (10, 20, 30)
        ],
        config=RunConfig().to_dict(),
        num_images=1234,
        num_classes=56,
        precision="fp32",
        seconds=61.0,
    )


def test_page_and_json_hold_every_figure(report: TrainingReport, tmp_path: Path) -> None:
    write_training_report(tmp_path, report)
    page = (tmp_path / "report.html").read_text()
    assert "run &lt;1&gt;: people" in page
    assert report.command in page
    for text in ("1,234 images of 56 identities", "2 images, 1 steps", "momentum", "squared L2"):
        assert text in page
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["systems"]["trained network"]["rank-1"] == report.systems[0].headline
    assert results["images_per_s"] == 20.0
    assert results["final_loss"] == 6.0
    assert [rank["measured_peak_bytes"] for rank in results["memory"]] == [189 * 2**20, 188 * 2**20]
    assert results["skipped"] == {"skipped_images": 2, "skipped_steps": 1}
    assert results["config"]["optim"]["momentum"] == 0.9


def test_summary_names_systems_search_engine_memory_and_page(
    report: TrainingReport, tmp_path: Path
) -> None:
    text = summary(report, tmp_path)
    trained = next(line for line in text.splitlines() if line.startswith("trained network"))
    assert f"{100 * report.systems[0].headline:.2f} %" in trained
    assert "search      torch" in text
    assert "budget 200.0MiB" in text
    assert "measured 189.0MiB" in text
    assert text.endswith(f"report  {tmp_path.resolve() / 'report.html'}")


def test_a_run_resumed_after_its_last_step_has_figures_all_the_same(
    report: TrainingReport, tmp_path: Path
) -> None:
    again = dataclasses.replace(
        report,
        outcome=TrainingOutcome(40, False, 0.0, 0.0, Totals()),
        memory=[dataclasses.replace(MEMORY, measured_peak_bytes=None)],
    )
    write_training_report(tmp_path, again)
    assert json.loads((tmp_path / "results.json").read_text())["images_per_s"] == 20.0
