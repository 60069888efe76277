"""Damaged files of every format: a reader gives images or says in one line what is wrong.

pytest -m slow -n 0 tests/facetrain_datasets/formats/test_fuzz.py
"""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from facetrain_datasets.convert import convert
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from tests.facetrain_datasets.damage import PER_EXAMPLE, SEEDS, damaged, fuzzed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


class _Faces:
    """Six images of three people; one holds RecordIO's magic, one is empty, two are the same."""

    identities = ("Ada", "Alan", "Grace")
    labels = np.array([0, 0, 1, 2, 2, 2], np.int64)
    images = (b"\xff\xd8one", b"twotwo\x0a\x23\xd7\xce", b"same", b"same", b"", b"last" * 20)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        return self.images[index]

    def describe(self, index: int) -> str:
        return f"image {index}"


@pytest.fixture(scope="module")
def written(folder: Path) -> Callable[[str], Path]:
    """Writes the faces in a format, once, and gives the folder without its index."""

    def write(format: str) -> Path:
        out = folder / format
        if not out.exists():
            convert(_Faces(), out, format)
        for index in out.glob("*.index"):
            index.unlink()
        return out

    return write


def read_all(path: Path) -> None:
    """Opens and reads everything; the index is removed, since a file may change within one tick."""
    with contextlib.suppress(DatasetError):
        source = open_faces(path)
        assert len(source.labels) == len(source)
        assert 0 <= source.labels.min() <= source.labels.max() < len(source.identities)
        for index in range(len(source)):
            assert isinstance(source.read(index), bytes)
            assert source.describe(index)
    for index_file in (*path.parent.glob("*.index"), *path.glob("*.index")):
        index_file.unlink()


@given(seed=SEEDS, part=st.sampled_from(["train.rec", "train.rec", "train.idx", "property"]))
@fuzzed
def test_rec(written: Callable[[str], Path], seed: int, part: str) -> None:
    file = written("rec") / part
    valid = file.read_bytes()
    try:
        for data in damaged(valid, seed):
            file.write_bytes(data)
            read_all(file.parent)
    finally:
        file.write_bytes(valid)


@given(seed=SEEDS)
@fuzzed
def test_rec_without_idx(written: Callable[[str], Path], folder: Path, seed: int) -> None:
    file = folder / "alone.rec"
    for data in damaged((written("rec") / "train.rec").read_bytes(), seed):
        file.write_bytes(data)
        read_all(file)


@given(seed=SEEDS, repair=st.booleans())
@fuzzed
def test_tar(written: Callable[[str], Path], folder: Path, seed: int, repair: bool) -> None:
    file = folder / "damaged.tar"
    for data in damaged((written("tar") / "000000.tar").read_bytes(), seed):
        file.write_bytes(_with_checksums(data) if repair else data)
        read_all(file)


def _with_checksums(data: bytes) -> bytes:
    """Gives every header a right checksum, so that damage gets past that check."""
    blocks = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number, block in enumerate(blocks):
        if len(block) == 512 and block[257:262] == b"ustar":
            checksum = tarfile.calc_chksums(block)[0]  # type: ignore[attr-defined]
            blocks[number] = block[:148] + b"%06o\0 " % checksum + block[156:]
    return b"".join(blocks)


@given(seed=SEEDS, compression=st.sampled_from(["none", "snappy"]))
@fuzzed
def test_parquet(written: Callable[[str], Path], folder: Path, seed: int, compression: str) -> None:
    valid = written("parquet") / "000000.parquet"
    if compression != "none":
        compressed = folder / compression
        if not compressed.exists():
            parquet.write_table(parquet.read_table(valid), compressed, compression=compression)
        valid = compressed
    file = folder / "damaged.parquet"
    for data in damaged(valid.read_bytes(), seed):
        file.write_bytes(data)
        read_all(file)


_LISTS = [
    b"path,label\nlist/Ada/000000000.jpg,0\nlist/Alan/000000002.jpg,1\n",
    b'path,identity\n"list/Ada/000000000.jpg","Ada"\nlist/Alan/000000002.jpg,Alan\n',
    b"list/Ada/000000000.jpg 0\nlist/Alan/000000002.jpg 1\n",
    b"7\t0.000000\tlist/Ada/000000000.jpg\n8\t1.0\t2.0\tlist/Alan/000000002.jpg\n",
]


@given(seed=SEEDS, content=st.sampled_from(_LISTS))
@fuzzed
def test_list(written: Callable[[str], Path], folder: Path, seed: int, content: bytes) -> None:
    written("list")
    file = folder / "damaged.csv"
    for data in damaged(content, seed):
        file.write_bytes(data)
        with contextlib.suppress(OSError):  # a file that the list names and that is not there
            read_all(file)


@given(seed=SEEDS)
@fuzzed
def test_folder(folder: Path, seed: int) -> None:
    random = Random(seed)
    names = ("a", "b", ".hidden", "1.jpg", "2.PNG", "3.txt", "\udcff.jpg", " ")
    root = folder / "tree"
    for _ in range(PER_EXAMPLE):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for _ in range(random.randint(0, 5)):
            target = root / random.choice(names) / random.choice(names)
            if not target.parent.is_file() and not target.exists():
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(b"x") if random.random() < 0.8 else target.mkdir()
        read_all(root)


@given(seed=SEEDS)
@settings(fuzzed, max_examples=100)  # no reader of users' files, and each time it is built anew
def test_index(written: Callable[[str], Path], seed: int) -> None:
    """A damaged header of an index is noticed, and the index built anew."""
    rec = written("rec") / "train.rec"
    open_faces(rec)
    index = Path(f"{rec}.index")
    header, newline, arrays = index.read_bytes().partition(b"\n")
    for data in damaged(header, seed):
        index.write_bytes(data + newline + arrays)
        assert open_faces(rec).read(5) == _Faces.images[5]
