"""Pairs of faces side by side with a line under each pair: what an evaluation got wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from facetrain.report.pictures import Picture, breakable


@dataclass(frozen=True, eq=False)
class PicturePairs:
    """Numbered pairs, several in a row."""

    pairs: Sequence[tuple[Picture, Picture]]
    captions: Sequence[str]

    def to_html(self) -> str:
        figures = (
            f'<figure><div class="pair">{left.image_html()}{right.image_html()}</div>'
            f"<figcaption>{breakable(caption)}</figcaption></figure>"
            for (left, right), caption in zip(self.pairs, self.captions, strict=True)
        )
        return f'<div class="pictures picture-pairs">{"".join(figures)}</div>'
