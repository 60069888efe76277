"""What the pages and result files of all evaluations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from facetrain.evaluation.extremes import ScoredPair, WorstPairs
from facetrain.evaluation.metrics import Roc
from facetrain.report import Block, Facts, Figure, Picture, PicturePairs, Section, Table, curves
from facetrain_tools.data.pictures import read_picture


def results(
    action: str, facts: Mapping[str, str], figures: Mapping[str, Any], roc: Roc | None = None
) -> dict[str, Any]:
    """The content of results.json: what was used, the figures, and the curve where there is one."""
    content = {"action": action, "used": dict(facts), **figures}
    if roc is not None:
        far, tar = curves.sampled(roc)
        content["curve"] = {"far": far.tolist(), "tar": tar.tolist()}
    return content


def curve_figures(systems: Mapping[str, Roc]) -> list[Figure]:
    """ROC and DET."""
    return [
        Figure(
            curves.roc_curves(systems),
            "ROC: share of genuine pairs accepted (TAR) over share of impostor pairs accepted "
            "(FAR)",
        ),
        Figure(
            curves.det_curves(systems),
            "DET: share of genuine pairs missed over share of impostor pairs accepted",
        ),
    ]


def worst_sections(
    worst: WorstPairs, names: Sequence[str], read: Callable[[int], bytes] | None
) -> list[Section]:
    """The worst false matches and misses: as pictures where images can be read, else by name."""
    titles = {
        "Impostor pairs most alike": worst.false_matches,
        "Genuine pairs least alike": worst.misses,
    }
    return [
        Section(title, [_pairs_block(pairs, names, read)])
        for title, pairs in titles.items()
        if pairs
    ]


def _pairs_block(
    pairs: Sequence[ScoredPair], names: Sequence[str], read: Callable[[int], bytes] | None
) -> Block:
    if read is None:
        rows = [(f"{pair.score:.4f}", names[pair.left], names[pair.right]) for pair in pairs]
        return Table(("cosine", "left", "right"), rows)

    def picture(row: int) -> Picture:
        return read_picture(lambda: read(row), names[row])

    return PicturePairs(
        [(picture(pair.left), picture(pair.right)) for pair in pairs],
        [f"{pair.score:.3f}  {names[pair.left]}  |  {names[pair.right]}" for pair in pairs],
    )


def print_blocks(blocks: Sequence[Facts | Table]) -> None:
    """The same figures on the terminal."""
    print("\n\n".join(block.to_text() for block in blocks))
