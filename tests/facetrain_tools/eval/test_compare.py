from __future__ import annotations

import json
from pathlib import Path

import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_tools import eval as eval_command


@pytest.fixture
def two(features: Path) -> tuple[str, str]:
    for out, far in (("a", "0.1"), ("b", "0.2")):
        flags = ["all-pairs", "--features", str(features), "--out", out, "--far", far, "1e-9"]
        assert eval_command.main(flags) == 0
    content = json.loads(Path("b/results.json").read_text())
    content["eer"] += 0.25
    content["used"]["flip"] = "yes"
    Path("b/results.json").write_text(json.dumps(content))
    return "a", "b/results.json"


def test_figures_stand_side_by_side(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert eval_command.main(["compare", *two]) == 0
    lines = capsys.readouterr().out.splitlines()
    (eer,) = [line.split() for line in lines if line.startswith("EER ")]
    assert eer[-2:] == ["+25.00", "%"]
    assert float(eer[3]) == pytest.approx(float(eer[1]) + 25.0, abs=0.01)
    (measurable,) = [line.split() for line in lines if line.startswith("TAR@FAR=1e-1 ")][:1]
    assert measurable[-1] == "n/a"  # only A has this target
    assert any(line.split() == ["TAR@FAR=1e-9", "n/a", "n/a"] for line in lines)
    assert [line.split() for line in lines if line.startswith("flip")] == [
        ["flip,", "A", "-"],
        ["flip,", "B", "yes"],
    ]
    page = Path("runs/eval-compare/report.html").read_text()
    assert page.count("<svg") == 2
    assert json.loads(Path("runs/eval-compare/results.json").read_text())["action"] == "compare"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (None, "no such file"),
        ("{", "not a readable results.json"),
        ("[]", "no results of facetrain eval"),
        ('{"systems": 1}', "no results of facetrain eval"),
        ('{"action": "all-pairs", "used": {}, "eer": 1e400}', "not as facetrain eval writes it"),
        ('{"action": "all-pairs", "used": {}, "n": %s}' % ("9" * 400), "no usable number"),
        *(
            (f'{{"action": "all-pairs", "used": {{}}, "{name}": {value}}}', "not as facetrain eval")
            for name, value in (
                ("curve", "3"),
                ("curve", '{"far": [0]}'),
                ("curve", '{"far": ["a"], "tar": [1]}'),
                ("curve", '{"far": [0, 1], "tar": [1]}'),
                ("curve", '{"far": [], "tar": []}'),
                ("curve", '{"far": [0.5, 0.1], "tar": [0, 1]}'),
                ("curve", '{"far": [0, 1], "tar": [0, 1]}'),  # no counts of pairs
                ("tar_at_far", '[{"far_target": "x"}]'),
                ("tar_at_far", '[{"far_target": 0.1, "tar": "x"}]'),
                ("tar_at_far", '[{"far_target": NaN, "tar": 0.1}]'),
            )
        ),
        ('{"action": "\\u001b\\n", "used": {}}', r"of eval \x1b\n;"),
        ('{"action": "ijb", "used": {}}', "is of eval all-pairs, c/results.json of eval ijb"),
    ],
)
def test_other_files_are_one_line(
    content: str | None, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a").mkdir()
    Path("a/results.json").write_text('{"action": "all-pairs", "used": {}}')
    Path("c").mkdir()
    if content is not None:
        Path("c/results.json").write_text(content)
    assert eval_command.main(["compare", "a", "c"]) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert names in error
    assert error.count("\n") == 1
