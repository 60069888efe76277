"""Damaged lists, sets and feature files: a reader gives content or says in one line what is wrong.

pytest -m slow -n 0 tests/facetrain_datasets/protocols/test_fuzz.py
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols import open_pairs
from facetrain_datasets.protocols.feature_files import read_features
from facetrain_datasets.protocols.ijb import open_ijb
from tests.facetrain_datasets.damage import SEEDS, damaged, fuzzed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
POINTS = "38.5 51.5 73.5 51.5 56 71.5 41.5 92.5 70.5 92.5"


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, ROWS)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, embeddings=ROWS, names=np.array(list("abcd")), identities=np.arange(4))
    return file.getvalue()


def pickled(protocol: int) -> bytes:
    arrays = [np.frombuffer(data, np.uint8).copy() for data in (b"abc", b"defg")]
    return pickle.dumps(([*arrays, b"hi", b"jk"], [True, False]), protocol)


CASES: dict[str, tuple[str, bytes, Callable[[Path], Any]]] = {
    "npy": ("f.npy", npy(), lambda path: read_features(path).embeddings),
    "npz": ("f.npz", npz(), lambda path: read_features(path).embeddings),
    "megaface": (
        "f.bin",
        np.array([3, 1, 4, 5], "<i4").tobytes() + ROWS[0].tobytes(),
        lambda path: read_features(path).embeddings,
    ),
    "pickle of protocol 2": ("p.bin", pickled(2), open_pairs),
    "pickle of protocol 5": ("p.bin", pickled(5), open_pairs),
    "LFW list": (
        "p.txt",
        b"2\t1\nAda\t1\t2\nAda\t1\tBob\t1\nBob\t1\t3\nBob\t3\tCy\t1\n",
        open_pairs,
    ),
    "table": (
        "p.csv",
        b'left,right,same,left_identity,right_identity\na.jpg,"b, c.jpg",1,A,A\nd,a.jpg,0,B,A\n',
        open_pairs,
    ),
    "IJB faces": (
        "ijbc_face_tid_mid.txt",
        b"1.jpg 10 7\n2.jpg 20 8\n",
        lambda path: open_ijb(path.parent).faces(),
    ),
    "IJB points": (
        "ijbc_name_5pts_score.txt",
        f"1.jpg {POINTS} 0.5\n2.jpg {POINTS} 1\n".encode(),
        lambda path: open_ijb(path.parent).faces(),
    ),
    "IJB pairs": (
        "ijbc_template_pair_label.txt",
        b"10 20 0\n10 30 1\n",
        lambda path: list(open_ijb(path.parent).pairs()),
    ),
    "IJB gallery": (
        "ijbc_1N_gallery_G1.csv",
        b"TEMPLATE_ID,SUBJECT_ID\n10,1\n20,2\n",
        lambda path: open_ijb(path.parent).galleries(),
    ),
}


@pytest.mark.filterwarnings("ignore")  # NumPy warns of headers that it had to repair
@pytest.mark.parametrize("name", CASES)
def test_damage_is_read_or_named_in_one_line(name: str, tmp_path: Path) -> None:
    file, whole, read = CASES[name]
    for other in CASES.values():  # what a set of meta files needs beside the damaged one
        if other[0].startswith("ijbc"):
            (tmp_path / other[0]).write_bytes(other[1])
    path = tmp_path / file
    path.write_bytes(whole)
    read(path)

    @fuzzed
    @given(SEEDS)
    def run(seed: int) -> None:
        for data in damaged(whole, seed):
            path.write_bytes(data)
            try:
                read(path)
            except DatasetError as error:
                assert str(error).isprintable()  # noqa: PT017 - some damage is harmless

    run()
