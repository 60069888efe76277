from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.lfw_pairs import read_lfw_pairs

TWO_FOLDS = "2\t1\nAda\t1\t2\nAda\t1\tBob\t1\nBob\t1\t3\nBob\t3\tCy\t12\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "pairs.txt"
    path.write_text(text)
    return path


def _write_images(folder: Path, *names: str) -> None:
    for name in names:
        person = folder / name.rpartition("_")[0]
        person.mkdir(parents=True, exist_ok=True)
        (person / f"{name}.jpg").write_bytes(b"")


def test_header_with_folds(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(_write(tmp_path, TWO_FOLDS))
    assert pairs.num_folds == 2
    assert [pair.is_same for pair in pairs.pairs] == [True, False, True, False]
    last = pairs.pairs[-1]
    assert (last.left_name, last.left_number) == ("Bob", 3)
    assert (last.right_name, last.right_number, last.line) == ("Cy", 12, 5)
    assert pairs.identities() == {"Ada", "Bob", "Cy"}


def test_header_with_one_count_and_windows_line_ends(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(_write(tmp_path, "1\r\nAda\t1\t2\r\nAda\t1\tBob\t1\r\n\r\n"))
    assert (pairs.num_folds, len(pairs.pairs)) == (1, 2)


def test_resolve_lists_each_image_once_in_order(tmp_path: Path) -> None:
    root = tmp_path / "lfw"
    _write_images(root, "Ada_0001", "Ada_0002", "Bob_0001", "Bob_0003", "Cy_0012")
    resolved = read_lfw_pairs(_write(tmp_path, TWO_FOLDS)).resolve(root)
    assert len(resolved) == 4
    assert len(set(resolved.names)) == len(resolved.names) == 5
    named = [
        (Path(resolved.names[left]).stem, Path(resolved.names[right]).stem)
        for left, right in zip(resolved.left, resolved.right, strict=True)
    ]
    assert named == [
        ("Ada_0001", "Ada_0002"),
        ("Ada_0001", "Bob_0001"),
        ("Bob_0001", "Bob_0003"),
        ("Bob_0003", "Cy_0012"),
    ]
    assert resolved.is_same.tolist() == [True, False, True, False]
    assert (resolved.left.dtype, resolved.right.dtype) == (np.int64, np.int64)
    assert (resolved.is_same.dtype, resolved.num_folds) == (np.bool_, 2)
    assert resolved.identities is not None
    assert resolved.identities.tolist() == [0, 0, 1, 1, 2]


def test_without_a_folder_the_pairs_are_known_and_reading_says_what_to_give(tmp_path: Path) -> None:
    resolved = read_lfw_pairs(_write(tmp_path, TWO_FOLDS)).resolve(None)
    assert resolved.names[0] == "Ada/Ada_0001.jpg"
    with pytest.raises(DatasetError, match=r"names Ada/Ada_0001.jpg, but no folder"):
        resolved.images()[0]


def test_pair_of_an_absent_file_is_named_with_its_line(tmp_path: Path) -> None:
    root = tmp_path / "lfw"
    _write_images(root, "Ada_0001", "Ada_0002", "Bob_0001", "Bob_0003")
    with pytest.raises(DatasetError, match=r"pairs\.txt:5: .*Cy/Cy_0012\.jpg does not exist; give"):
        read_lfw_pairs(_write(tmp_path, TWO_FOLDS)).resolve(root)


def test_absent_image_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere: no such folder"):
        read_lfw_pairs(_write(tmp_path, TWO_FOLDS)).resolve(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1: expected .* found an empty file"),
        ("ten 300\n", r":1: expected '<folds> <pairs>' or '<pairs>', found 'ten 300'"),
        ("1 2 3\n", r":1: expected"),
        ("0\n", r":1: expected"),
        ("9" * 5000 + "\n", r":1: expected"),
        ("9" * 4000 + " " + "9" * 4000 + "\n", r":1: expected"),
        ("1\nAda 1 2\nAda 1 Bob " + "9" * 5000 + "\n", r":3: expected"),
        ("1\nAda 1 2\nAda 1 Bob\n", r":3: expected 'name i j' or .*found 'Ada 1 Bob'"),
        ("1\nAda 1 2\nAda 1 Bob 0\n", r":3: expected"),
        ("1\nAda 1 2\nAda 1 Bob 1 7\n", r":3: expected"),
        ("1\nAda 1 2\nAda 1 Ada 3\n", r":3: .* names Ada twice"),
        ("1\nAda 1 2\n", r":1: the header promises 2 pairs .* the file has 1"),
        ("1\nAda 1 2\nAda 1 3\n", r":2: fold 1 starts here and has 2 pairs .* expected 1"),
    ],
)
def test_bad_list_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=r"pairs\.txt" + message):
        read_lfw_pairs(_write(tmp_path, text))


def test_absent_list_and_binary_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"absent\.txt: no such file"):
        read_lfw_pairs(tmp_path / "absent.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetError, match=r"binary\.txt: not a readable LFW pair list"):
        read_lfw_pairs(tmp_path / "binary.txt")
    with pytest.raises(DatasetError, match=r"not a readable LFW pair list"):
        read_lfw_pairs(tmp_path)


@pytest.mark.parametrize(
    ("name", "num_folds", "num_pairs", "num_images"),
    [
        ("lfw_pairs.txt", 10, 6000, 7701),
        ("lfw_pairsDevTrain.txt", 1, 2200, 3443),
        ("lfw_pairsDevTest.txt", 1, 1000, 1549),
    ],
)
def test_published_lists_resolve(
    shared_data: Path, name: str, num_folds: int, num_pairs: int, num_images: int
) -> None:
    pairs = read_lfw_pairs(shared_data / "protocols" / name)
    resolved = pairs.resolve(shared_data / "lfw112")
    assert resolved.num_folds == num_folds
    assert len(resolved) == num_pairs
    assert resolved.is_same.sum() == num_pairs // 2
    # Counted from the lists by another script.
    assert len(resolved.names) == num_images


def test_development_lists_share_no_identity(shared_data: Path) -> None:
    train, test = (
        read_lfw_pairs(shared_data / "protocols" / f"lfw_pairsDev{part}.txt").identities()
        for part in ("Train", "Test")
    )
    assert not train & test
