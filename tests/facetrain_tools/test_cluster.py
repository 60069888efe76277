from __future__ import annotations

from pathlib import Path

import pytest

from facetrain_tools import cluster as command
from facetrain_tools.cli import main
from memopt.partition.cluster import CLUSTERS, find_cluster


def test_prints_what_was_measured_and_writes_what_plan_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured = CLUSTERS["v100-32g"].resized(4)
    asked = []

    def measure(*arguments: object) -> object:
        asked.append(arguments)
        return measured

    monkeypatch.setattr(command, "measure_cluster", measure)
    path = tmp_path / "cluster.yaml"
    assert main(["bench", "cluster", "--num-processes", "4", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    for line in ("fp32 product", "14,130.0 Gop/s", "us a hop, 140.00 GB/s", f"written: {path}"):
        assert line in out
    assert asked == [(4, "cpu")]
    assert find_cluster(str(path), 4) == measured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--num-processes", "0"], "num_processes 0"), (["--device", "tpu"], "device 'tpu'")],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["bench", "cluster", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
