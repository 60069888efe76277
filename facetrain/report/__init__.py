"""Reports: a self-contained HTML page, its plots and its tables."""

from facetrain.report.page import (
    Block,
    Facts,
    Figure,
    Section,
    Table,
    Text,
    render_page,
    write_atomically,
    write_page,
)
from facetrain.report.picture_pairs import PicturePairs
from facetrain.report.pictures import Picture, PictureRow, Pictures

__all__ = [
    "Block",
    "Facts",
    "Figure",
    "Picture",
    "PicturePairs",
    "PictureRow",
    "Pictures",
    "Section",
    "Table",
    "Text",
    "render_page",
    "write_atomically",
    "write_page",
]
