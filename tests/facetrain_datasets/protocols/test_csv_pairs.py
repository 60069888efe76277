from __future__ import annotations

from pathlib import Path

import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.csv_pairs import read_csv_pairs


def _write(folder: Path, text: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("separator", [",", "\t", " "])
def test_table_without_header(tmp_path: Path, separator: str) -> None:
    lines = [("a/1.jpg", "a/2.jpg", "1"), ("a/1.jpg", "b/1.jpg", "0"), ("b/1.jpg", "a/2.jpg", "0")]
    text = "\n".join(separator.join(line) for line in lines)
    pairs = read_csv_pairs(_write(tmp_path, text), tmp_path / "faces")
    assert pairs.names == ["a/1.jpg", "a/2.jpg", "b/1.jpg"]
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 0, 2], [1, 2, 1])
    assert pairs.is_same.tolist() == [True, False, False]
    assert pairs.describe(2) == str(tmp_path / "faces" / "b/1.jpg")
    assert pairs.identities is not None
    assert pairs.identities.tolist() == [0, 0, 1]


def test_header_may_have_any_order_and_names_identities(tmp_path: Path) -> None:
    text = "same,left,right,right_identity,left_identity\nTrue,x.jpg,y.jpg,Ann,Ann\n"
    pairs = read_csv_pairs(_write(tmp_path, text + "false,x.jpg,z.jpg,Bob,Ann\n"))
    assert pairs.is_same.tolist() == [True, False]
    assert pairs.identities is not None
    assert pairs.identities.tolist() == [0, 0, 1]
    assert pairs.root == tmp_path


def test_folders_that_contradict_a_pair_are_no_identities(tmp_path: Path) -> None:
    assert read_csv_pairs(_write(tmp_path, "a/1.jpg,a/2.jpg,0\n")).identities is None
    assert read_csv_pairs(_write(tmp_path, "1.jpg,2.jpg,0\n1.jpg,3.jpg,1\n")).identities is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no pair in it"),
        ("left,right,same\n", ": no pair in it"),
        ("left,right,same,fold\na,b,1,2\n", ":1: columns left, right, same, fold, expected"),
        ("a,b,1\na,b\n", ":2: 2 fields, expected 3"),
        ("a,b,1\n" + "x" * 140_000 + ",b,1\n", ":2: field larger than field limit"),
        ("a,b,2\n", ":1: same is '2'.* or a header left,right,same"),
        ("left,right,same\na,b,2\n", ":2: same is '2'; write 1 for .*, 0 for one of two$"),
        ("left,right,same,left_identity,right_identity\na,b,1,Ann,Bob\n", ":2: same is 1, but"),
        (
            "left,right,same,left_identity,right_identity\na,b,1,Ann,Ann\na,c,0,Bob,Cy\n",
            ":3: an image of Bob was of Ann",
        ),
    ],
)
def test_bad_table_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=r"pairs\.csv" + message):
        read_csv_pairs(_write(tmp_path, text))


def test_absent_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        read_csv_pairs(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetError, match="not a readable table"):
        read_csv_pairs(tmp_path / "binary.csv")


def test_absent_image_names_the_table_and_what_to_do(tmp_path: Path) -> None:
    pairs = read_csv_pairs(_write(tmp_path, "no.jpg,b.jpg,0\n"))
    with pytest.raises(
        DatasetError, match=r"pairs\.csv: .*no\.jpg does not exist; give the folder"
    ):
        pairs.images()[0]
