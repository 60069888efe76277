"""What the pages and result files of all evaluations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from facetrain.evaluation.extremes import ScoredPair, WorstPairs
from facetrain.evaluation.metrics import Roc
from facetrain.report import Block, Facts, Figure, Picture, PicturePairs, Section, Table, curves
from facetrain_datasets.source import FaceSource
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
    """ROC and DET; without the second where no curve has a miss at any FAR."""
    roc = Figure(
        curves.roc_curves(systems),
        "ROC: share of genuine pairs accepted (TAR) over share of impostor pairs accepted (FAR)",
    )
    if all(curves.sampled(curve)[1].min() >= 1.0 for curve in systems.values()):
        return [roc]
    return [
        roc,
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


@dataclass(frozen=True)
class SourceNames(Sequence[str]):
    """Names of a source's images, made when asked for: the last folder and the file."""

    source: FaceSource

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return "/".join(Path(self.source.describe(index)).parts[-2:])
