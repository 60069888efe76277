"""Rows of pictures with a line under each, for pages that a person reviews.

Pictures([PictureRow("Ann and Bob, cosine 0.71", [Picture(image, "Ann/1.jpg"), ...])])
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import cv2
import numpy as np

_SIDE = 112  # pixels; larger pictures are scaled down to it
_QUALITY = 85


@dataclass(frozen=True, eq=False)
class Picture:
    """A uint8 RGB image [H, W, 3] and what it shows; scaled down to 112 pixels where larger."""

    image: np.ndarray
    caption: str = ""

    def image_html(self) -> str:
        """The image alone."""
        height, width = self.image.shape[:2]
        scale = min(1.0, _SIDE / max(height, width))
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = cv2.resize(self.image, size, interpolation=cv2.INTER_AREA)
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        encoded = base64.b64encode(data.tobytes()).decode("ascii")
        return (
            f'<img alt="{escape(self.caption, quote=True)}" width="{size[0]}" height="{size[1]}" '
            f'src="data:image/jpeg;base64,{encoded}">'
        )

    def to_html(self) -> str:
        shown = breakable(self.caption)
        return f"<figure>{self.image_html()}<figcaption>{shown}</figcaption></figure>"


def breakable(caption: str) -> str:
    """The caption escaped; file names are long words, so they may break behind marks in them."""
    return escape(caption, quote=True).replace("/", "/<wbr>").replace("_", "_<wbr>")


@dataclass(frozen=True, eq=False)
class PictureRow:
    """Pictures that belong together, under a line that says why; no title for a plain sheet."""

    title: str
    pictures: Sequence[Picture]

    def to_html(self) -> str:
        title = f"<p>{escape(self.title)}</p>" if self.title else ""
        pictures = "".join(picture.to_html() for picture in self.pictures)
        return f'{title}<div class="pictures">{pictures}</div>'


@dataclass(frozen=True, eq=False)
class Pictures:
    """Rows of pictures, one under the other."""

    rows: Sequence[PictureRow]

    def to_html(self) -> str:
        return "".join(row.to_html() for row in self.rows)
