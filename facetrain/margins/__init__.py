"""Margins: what is done to cosines between embeddings and class centers before the softmax.

One file each; adding one is a file, an entry in `MARGINS`, a test and a line in docs/margins.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from facetrain.errors import FacetrainError
from facetrain.margins.adaface import AdaFace
from facetrain.margins.arcface import ArcFace
from facetrain.margins.combined import CombinedMargin
from facetrain.margins.cosface import CosFace
from facetrain.margins.curricularface import CurricularFace
from facetrain.margins.elasticface import ElasticArcFace, ElasticCosFace
from facetrain.margins.magface import MagFace
from facetrain.margins.margin import Margin, Targets
from facetrain.margins.sphereface import SphereFace
from facetrain.margins.uniface import UniFace

__all__ = [
    "MARGINS",
    "AdaFace",
    "ArcFace",
    "CombinedMargin",
    "CosFace",
    "CurricularFace",
    "ElasticArcFace",
    "ElasticCosFace",
    "MagFace",
    "Margin",
    "SphereFace",
    "Targets",
    "UniFace",
    "build_margin",
    "margin_problems",
]

MARGINS: dict[str, type[Margin]] = {
    "adaface": AdaFace,
    "arcface": ArcFace,
    "combined": CombinedMargin,
    "cosface": CosFace,
    "curricularface": CurricularFace,
    "elasticface_arc": ElasticArcFace,
    "elasticface_cos": ElasticCosFace,
    "magface": MagFace,
    "sphereface": SphereFace,
    "uniface": UniFace,
}


def build_margin(name: str, options: Mapping[str, float] | None = None) -> Margin:
    """The margin of that name, with its paper's values but for the options given.

    Raises:
        FacetrainError: unknown name or option, or a value out of its range; names every one.
    """
    options = options or {}
    if problems := margin_problems(name, options):
        raise FacetrainError("; ".join(problems))
    return MARGINS[name](**options)


def margin_problems(
    name: str, options: Mapping[str, float], flags: Mapping[str, str] | None = None
) -> list[str]:
    """What is wrong with a margin's name and options, one line each.

    Args:
        flags: how an option is called in the message, followed by its value.
    """
    if name not in MARGINS:
        return [f"margin {name!r} is unknown: use one of {', '.join(sorted(MARGINS))}"]
    ranges = MARGINS[name].ranges
    problems = []
    for option, value in options.items():
        called = (flags or {}).get(option, f"margin option {option} ")
        if option not in ranges:
            known = ", ".join(ranges) or "none"
            problems.append(f"{called}{value:g}: the options of {name} are {known}")
            continue
        low, high = ranges[option]
        if not low <= value <= high:
            problems.append(f"{called}{value:g}: must be in [{low:g}, {high:g}] for {name}")
    if not problems:
        try:
            MARGINS[name](**options)
        except FacetrainError as error:  # options that do not go together
            problems.append(str(error))
    return problems
