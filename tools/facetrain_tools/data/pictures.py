"""Pictures of a data set for review pages; one that cannot be read is shown as a crossed field."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from facetrain.report import Picture
from facetrain_datasets.decode import decode_photo
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.source import FaceSource

_SIDE = 112


def read_picture(read: Callable[[], bytes], caption: str) -> Picture:
    """The encoded image that `read` gives, of any size."""
    try:
        return Picture(decode_photo(read(), caption), caption)
    except (DatasetError, OSError):
        field = np.full((_SIDE, _SIDE, 3), 160, np.uint8)
        near, far = _SIDE // 5, _SIDE - _SIDE // 5
        for start, stop in (((near, near), (far, far)), ((near, far), (far, near))):
            cv2.line(field, start, stop, (90, 90, 90), 3, cv2.LINE_AA)
        return Picture(field, caption)


def picture_of(source: FaceSource, index: int, note: str = "") -> Picture:
    """Image `index` under its file name, with its identity and a note."""
    name = source.describe(index).replace("\\", "/").split("/")[-1]
    identity = source.identities[source.labels.item(index)]
    shown = name if name.startswith(identity) else f"{identity}/{name}"
    return read_picture(lambda: source.read(index), f"{shown} {note}".rstrip())


def shown_of(title: str, count: int, limit: int) -> str:
    """A heading with how many there are, and how many of them follow where that is not all."""
    return f"{title} ({count:,}" + (f", the first {limit} shown)" if count > limit else ")")
