"""Sets written by Python 2 and 3 and by NumPy of both names; pickles that would run code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols import open_pairs
from facetrain_datasets.protocols.verification_bin import read_verification_bin


def faces(num: int = 4) -> list[bytes]:
    images = [np.full((8, 8, 3), 40 * row, np.uint8) for row in range(num)]
    return [cv2.imencode(".png", image)[1].tobytes() for image in images]


def _write(folder: Path, data: bytes) -> Path:
    path = folder / "set.bin"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["bytes", "bytearray", "array"])
@pytest.mark.parametrize("kinds", ["list", "array", "scalars"])
def test_every_form_gives_the_images_and_kinds(
    tmp_path: Path, protocol: int, kind: str, kinds: str
) -> None:
    encode: dict[str, Callable[[bytes], Any]] = {
        "bytes": bytes,
        "bytearray": bytearray,
        "array": lambda data: np.frombuffer(data, np.uint8).copy(),
    }
    is_same = {
        "list": [True, False],
        "array": np.array([True, False]),
        "scalars": [np.True_, np.False_],
    }[kinds]
    data = pickle.dumps(([encode[kind](face) for face in faces()], is_same), protocol)
    pairs = read_verification_bin(_write(tmp_path, data))
    assert [pairs.read(row) for row in range(4)] == faces()
    assert pairs.is_same.tolist() == [True, False]
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 2], [1, 3])
    assert (pairs.num_folds, pairs.identities) == (10, None)
    assert (pairs.images(image_size=8)[2] == 80).all()


def test_python_2_strings_and_the_old_name_of_numpy(tmp_path: Path) -> None:
    # As Python 2 writes it: SHORT_BINSTRING for str, (images, [True]) as a tuple.
    images = b"(" + b"".join(b"U" + bytes([len(f)]) + f for f in (b"\xffone", b"\x00two")) + b"l"
    pairs = read_verification_bin(_write(tmp_path, b"\x80\x02(" + images + b"(I01\nlt."))
    assert [pairs.read(row) for row in range(2)] == [b"\xffone", b"\x00two"]
    data = pickle.dumps(([np.frombuffer(b"abc", np.uint8).copy()] * 2, [False]), 2)
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert read_verification_bin(_write(tmp_path, old)).read(1) == b"abc"


class Attack:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    for attack in (Attack(os.mkdir, str(marker)), Attack(eval, "1")):
        name = f"{attack.call[0].__module__}.{attack.call[0].__name__}"
        data = pickle.dumps(([attack] * 2, [True]), protocol)
        with pytest.raises(
            DatasetError, match=rf"set\.bin: would run '{name}' on loading.*refused"
        ):
            read_verification_bin(_write(tmp_path, data))
    assert not marker.exists()


def test_what_a_pickle_does_to_its_names_ends_with_it(tmp_path: Path) -> None:
    # BUILD with a state of attributes, on the stand-in of numpy.dtype itself.
    data = b"\x80\x02cnumpy\ndtype\nN}U\x08__call__K\x01s\x86b."
    with pytest.raises(DatasetError):
        read_verification_bin(_write(tmp_path, data))
    test_every_form_gives_the_images_and_kinds(tmp_path, 2, "array", "array")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([b"a", b"b"], "2 images for 0|holds bytes|not \\(images"),
        (([b"a"] * 3, [True]), "3 images for 1 pairs"),
        (([], []), "0 images for 0 pairs"),
        (([1, 2], [True]), "image 0 is int"),
        ((["a", "b"], [True]), "image 0 is str"),
        (([b"a", b"b"], ["yes"]), "pair 0 is 'yes'"),
        (([np.zeros(3), np.zeros(3)], [True]), "array of 'f8'"),
        ((b"ab", [True]), "holds bytes where a list"),
        ("ab", "not \\(images, is_same\\)"),
        ({"a": 1}, "a dict or a set in it"),
        (([b"a", b"b"], [10**5000]), "pair 0 is of kind int"),
        (([b"a", b"b"], [float("nan")]), "pair 0 is of kind float"),
    ],
)
def test_other_content_is_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_verification_bin(_write(tmp_path, pickle.dumps(content)))


def test_giant_sizes_in_a_small_file_are_refused(tmp_path: Path) -> None:
    for data in (
        b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",  # bytes(2**31 - 1)
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo entry of number 2**31 - 1
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00.",  # a string of 2**40 bytes
        b"\x80\x05\x96\x00\x00\x00\x00\x08\x00\x00\x00.",  # a bytearray of 2**35
    ):
        with pytest.raises(DatasetError):
            read_verification_bin(_write(tmp_path, data))


def _nested(depth: int) -> bytes:
    """Code of a tuple whose text, or whose hash, takes 2**depth steps: (x, x), x = (y, y), .."""
    inner = b"".join(b"0h%ch%c\x86\x94" % (level, level) for level in range(depth))
    return b"K\x01\x85\x94" + inner


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04" + _nested(60) + b"\x85.", "not"),
        (b"\x80\x04]C\x01aaC\x01ba]" + _nested(60) + b"a\x86.", "pair 0 is of kind tuple"),
        (b"\x80\x04](C\x01aC\x01be](" + _nested(60) + b"e\x86.", "pair 0 is of kind tuple"),
        (b"\x80\x04}" + _nested(60) + b"K\x01s.", "a dict or a set"),
        (b"\x80\x04\x8f(" + _nested(60) + b"\x90.", "a dict or a set"),
        (b"\x80\x04(" + _nested(60) + b"\x91.", "a dict or a set"),
        (b"\x80\x04(" + _nested(60) + b"K\x01d.", "a dict or a set"),
        (b"\x80\x04(" + _nested(60) + b"cnumpy\ndtype\nh<\x85R.", "tuple for a name"),
        (b"\x80\x04(" + b"]" * 5000 + b"a" * 4999 + b"tC\x01a\x86.", "image 0 is list"),
    ],
)
def test_nested_values_take_no_time(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_verification_bin(_write(tmp_path, data))


def test_a_small_file_makes_nothing_large(tmp_path: Path) -> None:
    # One text, and its encoding asked for again and again.
    text = b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000
    encode = b"\x80\x02c_codecs\nencode\nq\x000" + text + b"q\x010X\x06\x00\x00\x00latin1q\x020]("
    data = encode + b"h\x00h\x01h\x02\x86R" * 1000 + b"e]\x86."
    with pytest.raises(DatasetError, match="more than its"):
        read_verification_bin(_write(tmp_path, data))
    # A codec whose result grows, or takes quadratic time.
    grows = b"\x80\x02c_codecs\nencode\n" + text + b"X\x08\x00\x00\x00punycode\x86R."
    with pytest.raises(DatasetError, match="encoding"):
        read_verification_bin(_write(tmp_path, grows))


@pytest.mark.parametrize("image", [bytearray(1000), np.zeros(1000, np.uint8)])
def test_an_image_that_is_there_often_is_in_memory_once(tmp_path: Path, image: Any) -> None:
    pairs = read_verification_bin(_write(tmp_path, pickle.dumps(([image] * 40, [True] * 20), 5)))
    assert pairs.encoded is not None
    assert len({id(encoded) for encoded in pairs.encoded}) == 1
    assert pairs.read(39) == bytes(1000)


def test_cut_anywhere_is_one_of_our_errors(tmp_path: Path) -> None:
    data = pickle.dumps((faces(), [True, False]), 2)
    for end in range(0, len(data), 7):
        with pytest.raises(DatasetError, match=r"set\.bin"):
            read_verification_bin(_write(tmp_path, data[:end]))
    with pytest.raises(DatasetError, match="no such file"):
        read_verification_bin(tmp_path / "absent.bin")


def test_published_set_of_positive_pairs(shared_data: Path) -> None:
    pairs = open_pairs(shared_data / "formats" / "insightface_small_lfw.bin")
    assert (len(pairs), pairs.is_same.all()) == (10, True)
    assert pairs.images()[19].shape == (112, 112, 3)
