"""`facetrain eval compare A B`: the figures of two evaluations side by side.

A and B are results.json files, or the folders that hold them, of the same kind of evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from facetrain.command import parse_flags
from facetrain.errors import FacetrainError
from facetrain.evaluation.metrics import Roc
from facetrain.report import Facts, Section, Table
from facetrain.report.tables import far_text, percent
from facetrain_tools.eval.sections import curve_figures, print_blocks, results
from facetrain_tools.output import RESULTS_FILE, output_folder, write_report

#: Parts of results.json that are no figures to compare.
_APART = frozenset({"flags", "used", "action", "curve", "intervals"})
_TOO_LARGE = 1e15
_SHOWN_RANKS = frozenset({"1", "5", "10"})
#: Words of results.json, and what stands for them on the terminal and the page.
_PRINTED = {
    "verification ": "1:1 ",
    "identification ": "1:N ",
    "tpir_at_fpir ": "TPIR@FPIR=",
    "tar_at_far ": "TAR@FAR=",
    "dir_at_far ": "DIR@FAR=",
    "applied_thresholds ": "TAR at the threshold for FAR ",
    "threshold_squared_l2": "best squared L2",
    "threshold_cosine": "best cosine",
    "accuracy_std": "accuracy +-",
    "rank ": "rank-",
    "num_genuine": "genuine pairs",
    "num_impostor": "impostor pairs",
    "num_": "",
    "eer": "EER",
    "auc": "AUC",
    "_": " ",
}
_RATES = ("accuracy", "EER", "TAR", "DIR", "TPIR", "rank-")


@dataclass(frozen=True)
class CompareFlags:
    """Two evaluations side by side."""

    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """results.json, or its folder."""
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """results.json of the same kind of evaluation, or its folder."""
    out: Path | None = None
    """Folder for report.html and results.json; default: a new one under runs/."""


@dataclass(frozen=True)
class _Result:
    """A results.json: what was evaluated with what, its figures, and the curve as far as kept."""

    path: Path
    action: str
    used: Mapping[str, Any]
    figures: Mapping[str, float | None]
    roc: Roc | None


def main(arguments: Sequence[str]) -> int:
    """`facetrain eval compare` with the flags given; the exit code."""
    return run_compare(parse_flags(CompareFlags, arguments, "facetrain eval compare"))


def run_compare(flags: CompareFlags) -> int:
    """Prints both, and writes the report; the exit code.

    Raises:
        FacetrainError: a file that cannot be read, or results of two kinds.
    """
    first, second = (_read(path) for path in (flags.first, flags.second))
    actions = [result.action for result in (first, second)]
    if actions[0] != actions[1]:
        raise FacetrainError(
            f"{first.path} is of eval {actions[0]}, {second.path} of eval {actions[1]}; compare "
            "results of one kind"
        )
    folder = output_folder("eval-compare", flags.out)
    blocks: list[Facts | Table] = [figure_table(first.figures, second.figures)]
    used = [first.used, second.used]
    differing = {
        f"{name}, {side}": str(values.get(name, "-"))
        for name in sorted({*used[0], *used[1]})
        if used[0].get(name) != used[1].get(name)
        for side, values in zip("AB", used, strict=True)
    }
    if differing:
        blocks.append(Facts(differing))
    print_blocks([Facts({"A": str(first.path), "B": str(second.path)}), *blocks])
    sections = [Section("Figures", blocks)]
    rocs = {"A": first.roc, "B": second.roc}
    if kept := {name: roc for name, roc in rocs.items() if roc is not None}:
        sections.append(Section("Curves", curve_figures(kept)))
    write_report(
        folder,
        f"Two evaluations: {actions[0]}",
        sections,
        summary=f"A is {first.path}, B is {second.path}",
        flags=flags,
        results=results(
            "compare",
            {"first": str(first.path), "second": str(second.path)},
            {"figures": {"A": first.figures, "B": second.figures}},
        ),
    )
    return 0


def figure_table(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> Table:
    """Every figure of either, and the difference where both have it."""
    rows = []
    for name in [*first, *(name for name in second if name not in first)]:
        a, b = first.get(name), second.get(name)
        title = _title(name)
        difference = "" if a is None or b is None else _number(title, b - a, signed=True)
        rows.append((title, _number(title, a), _number(title, b), difference))
    return Table(("figure", "A", "B", "B - A"), rows, "n/a: not measurable, or not in the file")


def _title(name: str) -> str:
    """The name of a figure in results.json as the other commands print it."""
    for written, printed in _PRINTED.items():
        name = name.replace(written, printed)
    return name


def _number(title: str, value: float | None, signed: bool = False) -> str:
    if value is None:
        return "n/a"
    sign = "+" if signed and value > 0 else ""
    if isinstance(value, int):
        return f"{sign}{value:,}"
    is_rate = any(word in title for word in _RATES) and not title.endswith("threshold")
    return sign + (percent(value) if is_rate else f"{value:.4f}")


def _flat(content: Any, name: str = "") -> Iterator[tuple[str, float | None]]:
    """Names and values of the numbers in nested content."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if name.endswith("rank") and key not in _SHOWN_RANKS:
                continue
            yield from _flat(value, f"{name} {key}".strip())
    elif isinstance(content, list):
        for point in content:
            if isinstance(point, Mapping) and "far_target" in point:
                target = f"{name} {far_text(_number_of(point['far_target']))}"
                tar = point.get("tar")
                yield target, None if tar is None else _number_of(tar)
                threshold = point.get("threshold", point.get("cosine"))
                if threshold is not None:
                    yield f"{target} threshold", _number_of(threshold)
    elif content is None:
        yield name, None
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield name, None if content != content else _number_of(content)  # NaN: not measurable


def _number_of(value: Any) -> float:
    """A number that can be counted with.

    Raises:
        ValueError: it is something else.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not abs(value) < _TOO_LARGE
    ):
        raise ValueError(f"{type(value).__name__} that is no usable number")
    return value


def _roc(content: Mapping[str, Any]) -> Roc | None:
    curve = content.get("curve")
    if curve is None:
        return None
    far, tar = (np.array(list(map(_number_of, curve[name])), np.float64) for name in ("far", "tar"))
    rising = all((np.diff(values, prepend=0.0, append=1.0) >= 0).all() for values in (far, tar))
    if len(far) != len(tar) or not len(far) or not rising:
        raise ValueError("a curve that is none")
    counts = content.get("verification", content)
    num_genuine, num_impostor = (
        int(_number_of(counts[name])) for name in ("num_genuine", "num_impostor")
    )
    if min(num_genuine, num_impostor) < 1:
        raise ValueError("no pairs")
    return Roc(np.full(len(far), np.nan), far, tar, num_genuine, num_impostor)


def _read(path: Path) -> _Result:
    file = path / RESULTS_FILE if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FacetrainError(f"{file}: no such file; name a {RESULTS_FILE} or its folder") from None
    except (ValueError, RecursionError) as error:
        raise FacetrainError(f"{file}: not a readable {RESULTS_FILE} ({error})") from None
    known = isinstance(content, dict) and isinstance(content.get("used"), dict)
    if not known or not isinstance(content.get("action"), str):
        raise FacetrainError(f"{file}: no results of facetrain eval; name a {RESULTS_FILE} of one")
    try:
        figures = dict(_flat({k: v for k, v in content.items() if k not in _APART}))
        return _Result(file, content["action"], content["used"], figures, _roc(content))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FacetrainError(
            f"{file}: not as facetrain eval writes it ({str(error)[:80]}); evaluate anew"
        ) from None
