"""The page is whole in itself, well formed, and shows every text as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from facetrain.errors import FacetrainError
from facetrain.report import Facts, Figure, Section, Table, Text, render_page, write_page
from facetrain.report.plots import face_sheet

HOSTILE = '<script>alert("1")</script>&\''
VOID = {"meta", "img", "path", "use", "rect", "br"}


class Outline(HTMLParser):
    """Checks nesting; collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    assert parser.open == []
    return parser


def png() -> bytes:
    return face_sheet([[np.zeros((4, 4, 3), np.uint8)]])


def test_every_text_is_escaped_and_shown_as_it_is() -> None:
    section = Section(
        HOSTILE,
        [
            Text(HOSTILE),
            Facts({HOSTILE: HOSTILE}),
            Table((HOSTILE,), [(HOSTILE,)], caption=HOSTILE),
            Figure(png(), HOSTILE),
            Figure(b"<?xml version='1.0'?><svg></svg>", HOSTILE),
        ],
    )
    page = outline(render_page(HOSTILE, [section], summary=HOSTILE))
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(HOSTILE) == 12
    labels = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg"]
    assert labels == [HOSTILE]
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img"] == [HOSTILE]


def test_page_loads_nothing() -> None:
    page = render_page("t", [Section("s", [Figure(png(), "c"), Text("t")])])
    for _, attrs in outline(page).tags:
        for name in ("src", "href", "srcset"):
            assert (attrs.get(name) or "data:").startswith("data:")
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(", page)


def test_figures_that_follow_one_another_share_a_row() -> None:
    figure = Figure(png(), "c")
    blocks = [figure, figure, Text("t"), figure]
    tags = outline(render_page("t", [Section("s", blocks)])).tags
    rows = [attrs for tag, attrs in tags if tag == "div"]
    assert [row["class"] for row in rows] == ["figures", "figures"]


def test_table_prints_as_aligned_text() -> None:
    table = Table(("system", "TAR"), [("ours", "97.00 %"), ("a longer one", "5 %")], "n = 3")
    assert table.to_text().splitlines() == [
        "system            TAR",
        "------------  -------",
        "ours          97.00 %",
        "a longer one      5 %",
        "n = 3",
    ]


def test_a_heading_may_break_behind_its_equals_sign() -> None:
    page = Table(("system", "TAR@FAR=1e-6"), [("a=b", "1")]).to_html()
    assert "TAR@FAR=<wbr>1e-6" in page
    assert "a=b" in page


def test_facts_print_as_aligned_text() -> None:
    assert Facts({"flip": "no", "distance": "squared L2"}).to_text().splitlines() == [
        "flip      no",
        "distance  squared L2",
    ]


def test_text_for_a_terminal_obeys_no_name(tmp_path: Path) -> None:
    name = "\x1b[31m\n\udcff"
    shown = r"\x1b[31m\n\udcff"
    assert Facts({name: name}).to_text() == f"{shown}  {shown}"
    assert Table((name,), [(name,)], name).to_text().splitlines() == [
        shown,
        "-" * len(shown),
        shown,
        shown,
    ]
    write_page(tmp_path / "report.html", name, [Section("", [Text(name)])])
    assert r"\udcff</p>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_uneven_table_and_unknown_image_are_refused() -> None:
    with pytest.raises(FacetrainError, match="1 cells under 2 headings"):
        Table(("a", "b"), [("c",)])
    with pytest.raises(FacetrainError, match="neither PNG nor SVG"):
        Figure(b"GIF89a", "x").to_html()


def test_write_page_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    for title in ("first", "second"):
        write_page(path, title, [])
        assert f"<h1>{title}</h1>" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
