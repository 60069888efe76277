"""Reports: a self-contained HTML page, its plots and its tables."""

from facetrain.report.page import (
    Facts,
    Figure,
    Section,
    Table,
    Text,
    render_page,
    write_atomically,
    write_page,
)

__all__ = [
    "Facts",
    "Figure",
    "Section",
    "Table",
    "Text",
    "render_page",
    "write_atomically",
    "write_page",
]
