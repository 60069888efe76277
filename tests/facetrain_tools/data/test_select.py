"""`facetrain data select`: lists of images and of identities, formats, and lists of other sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from facetrain.errors import EXIT_BAD_INPUT
from facetrain_datasets.formats import open_faces
from facetrain_tools import data

from .conftest import FaceSet, people


def test_images_and_identities_of_several_lists_are_left_out(
    write_set: Callable[..., FaceSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_set("set", people(4, images=2)).root
    images, identities = tmp_path / "images.csv", tmp_path / "identities.csv"
    images.write_text(
        f"index,image,why\n0,{root / 'p00' / '00.png'},x\n2,{root / 'p01' / '00.png'},y\n"
    )
    identities.write_text("identity,cosine\np02,0.9\n")
    out = tmp_path / "kept.rec"
    lists = ["--without", str(images), str(identities)]
    assert data.main(["select", str(root), str(out), *lists]) == 0
    assert "rec, 4 of 8 images, 3 of 4 identities" in capsys.readouterr().out
    assert sorted(open_faces(out).identities) == ["p00", "p01", "p03"]
    again = tmp_path / "larger"
    assert data.main(["select", str(root), str(again), *lists, "--min-images", "2"]) == 0
    assert list(open_faces(again).identities) == ["p03"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name\nx\n", "expected the columns index and image, or identity; found name"),
        ("", "found none"),
        ("finding,first_identity\nsplit,x\n", "split or merged are joined or parted by hand"),
        ("index,image\n9,x\n", "list.csv:2: index '9' is none of the 4 images"),
        ("index,image\n-1,x\n", "list.csv:2"),
        ("index,image\n0,/elsewhere/00.png\n", "not /elsewhere/00.png"),
        ("identity\nnobody\n", "'nobody' is not in the data"),
        ("identity\np00\np01\n", "nothing is left of 4 images"),
    ],
)
def test_a_list_of_something_else_is_refused(
    write_set: Callable[..., FaceSet],
    tmp_path: Path,
    text: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_set("set", people(2, images=2)).root
    (tmp_path / "list.csv").write_text(text)
    out = tmp_path / "out"
    arguments = ["select", str(root), str(out), "--without", str(tmp_path / "list.csv")]
    assert data.main(arguments) == EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not out.exists()
