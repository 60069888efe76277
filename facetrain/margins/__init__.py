"""Margins: what is done to cosines between embeddings and class centers before the softmax.

One file each; adding one is a file, an entry in `MARGINS`, a test and a line in docs/margins.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from facetrain.errors import FacetrainError
from facetrain.margins.arcface import ArcFace
from facetrain.margins.cosface import CosFace
from facetrain.margins.margin import Margin, Targets

__all__ = [
    "MARGINS",
    "ArcFace",
    "CosFace",
    "Margin",
    "Targets",
    "build_margin",
    "margin_problems",
]

MARGINS: dict[str, type[Margin]] = {"arcface": ArcFace, "cosface": CosFace}


def build_margin(name: str, options: Mapping[str, float] | None = None) -> Margin:
    """The margin of that name, with its paper's values but for the options given.

    Raises:
        FacetrainError: unknown name or option, or a value out of its range; names every one.
    """
    options = options or {}
    if problems := margin_problems(name, options):
        raise FacetrainError("; ".join(problems))
    return MARGINS[name](**options)


def margin_problems(name: str, options: Mapping[str, float]) -> list[str]:
    """What is wrong with a margin's name and options, one line each."""
    if name not in MARGINS:
        return [f"margin {name!r} is unknown: use one of {', '.join(sorted(MARGINS))}"]
    ranges = MARGINS[name].ranges
    problems = []
    for option, value in options.items():
        if option not in ranges:
            known = ", ".join(ranges) or "none"
            problems.append(f"margin option {option!r}: {name} has {known}")
            continue
        low, high = ranges[option]
        if not low <= value <= high:
            problems.append(
                f"margin option {option} {value:g} of {name}: must be in [{low:g}, {high:g}]"
            )
    return problems
