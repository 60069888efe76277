"""A report as one HTML file: no network, no scripts, light and dark, every text escaped.

    write_page(path, "Run 12", [Section("Accuracy", [Table(("system", "TAR"), rows), Text("...")])])

A `Table` also prints as aligned text, so that a terminal and the page show the same figures.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Protocol

from facetrain.errors import FacetrainError
from facetrain.printable import printable

_PNG = b"\x89PNG\r\n\x1a\n"

_STYLE = """
:root { color-scheme: light dark; --text: #1c2128; --soft: #59636e; --back: #fff; --rule: #d8dee4;
  --tint: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e2e8ee; --soft: #9aa5b1; --back: #12161b; --rule: #333b44; --tint: #1a2027; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; color: var(--text);
  background: var(--back); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 .25rem; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.2rem; }
p { margin: .5rem 0; max-width: 44rem; }
.summary, figcaption, caption { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .75rem 0; font-size: .9375rem;
  font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; font-size: .875rem; padding-top: .4rem; }
th, td { padding: .35rem .65rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
thead th { background: var(--tint); font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; margin: .75rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem 1.5rem; }
figure { margin: .75rem 0; min-width: 0; }
figure svg, figure img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .875rem; margin-top: .35rem; }
.pictures { display: flex; flex-wrap: wrap; gap: .75rem; margin-bottom: 1.25rem; }
.pictures figure { width: 7rem; margin: 0; }
.picture-pairs figure { width: 14.25rem; }
.pair { display: flex; gap: .25rem; }
@media (max-width: 30rem) {
  body { padding: 1.25rem 1rem 3rem; }
  table { font-size: .875rem; }
  th, td { padding: .35rem .4rem; }
}
.pictures figcaption { font-size: .75rem; line-height: 1.3; overflow-wrap: anywhere; }
"""


class Block(Protocol):
    """What a section is made of."""

    def to_html(self) -> str: ...


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def to_html(self) -> str:
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Facts:
    """Names and values, such as what a run was made with."""

    values: Mapping[str, str]

    def to_html(self) -> str:
        pairs = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in self.values.items())
        return f"<dl>{''.join(pairs)}</dl>"

    def to_text(self) -> str:
        width = max(map(len, self.values), default=0)
        return "\n".join(
            printable(f"{name:<{width}}  {value}") for name, value in self.values.items()
        )


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column names the row, the others hold its figures.

    Raises:
        FacetrainError: a row of another length than the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise FacetrainError(
                    f"table row {list(row)}: {len(row)} cells under {len(self.header)} headings"
                )

    def to_html(self) -> str:
        # A long name such as TAR@FAR=1e-6 may go on in a second line, so that more columns fit.
        names = (escape(cell).replace("=", "=<wbr>") for cell in self.header)
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return (
            f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def to_text(self) -> str:
        """The table in aligned columns, for a terminal."""
        lines = [list(map(printable, line)) for line in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        text.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(text + ([printable(self.caption)] if self.caption else []))


@dataclass(frozen=True)
class Figure:
    """A PNG or SVG image, as `facetrain.report.plots` draws them, and what it shows."""

    image: bytes
    caption: str

    def to_html(self) -> str:
        label = escape(self.caption, quote=True)
        if self.image.startswith(_PNG):
            data = base64.b64encode(self.image).decode("ascii")
            drawing = f'<img alt="{label}" src="data:image/png;base64,{data}">'
        else:
            # Inline, so that an SVG takes the page's text colour; without the XML prologue.
            svg = self.image.decode("utf-8")
            if "<svg" not in svg:
                raise FacetrainError(f"figure {self.caption!r}: neither PNG nor SVG")
            svg = svg[svg.index("<svg") :]
            drawing = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
        return f"<figure>{drawing}<figcaption>{escape(self.caption)}</figcaption></figure>"


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; figures that follow one another share a row."""

    title: str
    blocks: Sequence[Block]

    def to_html(self) -> str:
        parts = [f"<section><h2>{escape(self.title)}</h2>"]
        in_figures = False
        for block in self.blocks:
            if isinstance(block, Figure) != in_figures:
                parts.append("</div>" if in_figures else '<div class="figures">')
                in_figures = not in_figures
            parts.append(block.to_html())
        parts.append("</div></section>" if in_figures else "</section>")
        return "\n".join(parts)


def render_page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """The whole HTML document."""
    lead = f'<p class="summary">{escape(summary)}</p>' if summary else ""
    body = "\n".join(section.to_html() for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be loaded or run, whatever a name in the data looks like.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<header><h1>{escape(title)}</h1>{lead}</header>\n{body}\n</body>\n</html>\n"
    )


def write_page(path: Path, title: str, sections: Sequence[Section], *, summary: str = "") -> None:
    """Writes the page to `path`, creating its folder; readers never see half of it.

    What no encoding can write, as parts of file names that are no UTF-8, is shown by its code.
    """
    page = render_page(title, sections, summary=summary)
    write_atomically(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))


def write_atomically(path: Path, text: str) -> None:
    """Writes UTF-8 text to a temporary name beside `path` and renames it.

    Parts of file names that are no UTF-8 are written as the bytes they are.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")
        partial.replace(path)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
