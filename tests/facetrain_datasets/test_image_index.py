from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets import image_index
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.recordio import image_of_parts
from facetrain_datasets.image_index import ImageIndex, open_index
from facetrain_datasets.indexed_faces import IndexedFaces
from facetrain_datasets.packed_strings import PackedStrings

IMAGES = [b"one", b"", b"three", b"four"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "faces.bin"
    file.write_bytes(b"".join(IMAGES))
    return file


class Builder:
    """Counts how often the index is built."""

    def __init__(self) -> None:
        self.num_built = 0

    def __call__(self) -> ImageIndex:
        self.num_built += 1
        lengths = np.array([len(image) for image in IMAGES])
        return ImageIndex(
            identities=PackedStrings.of(["Ada", "Alan"]),
            labels=np.array([0, 0, 1, 1]),
            names=PackedStrings.of("abcd"),
            offsets=np.cumsum(lengths) - lengths,
            lengths=lengths,
            note="a note",
        )


@pytest.fixture
def build() -> Builder:
    return Builder()


def _open(data: Path, build: Callable[[], ImageIndex]) -> IndexedFaces:
    return IndexedFaces(open_index(data, "bin", [data], build), [data])


def test_built_once_and_mapped_from_its_file(data: Path, build: Builder) -> None:
    for _ in range(3):
        faces = _open(data, build)
        assert [faces.read(index) for index in range(4)] == IMAGES
        assert faces.labels.tolist() == [0, 0, 1, 1]
        assert faces.identities == ["Ada", "Alan"]
        assert faces.describe(2) == f"{data}: c"
        assert faces.note == "a note"
    assert build.num_built == 1
    assert data.with_name("faces.bin.index").exists()
    assert type(faces.labels) is np.ndarray


def test_index_of_a_folder_lies_in_it(tmp_path: Path, data: Path, build: Builder) -> None:
    open_index(tmp_path, "bin", [data], build)
    assert (tmp_path / "bin.index").exists()


@pytest.mark.parametrize("change", ["longer", "touched", "other format"])
def test_stale_index_is_built_anew(data: Path, build: Builder, change: str) -> None:
    _open(data, build)
    if change == "longer":
        data.write_bytes(data.read_bytes() + b"more")
    elif change == "touched":
        os.utime(data, (1, 1))
    open_index(data, "other" if change == "other format" else "bin", [data], build)
    assert build.num_built == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"fingerprint": 3}\n', b"[]\n"])
def test_damaged_index_is_built_anew(data: Path, build: Builder, content: bytes) -> None:
    data.with_name("faces.bin.index").write_bytes(content)
    assert _open(data, build).read(0) == b"one"


def _change(name: str, value: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][-1] = value

    return change


def _retype(name: str, dtype: str) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].astype(dtype)

    return change


def _shorten(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name][:-1]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _change("labels", -1),
        _change("labels", 2),
        _change("name_ends", 3),
        _change("identity_ends", 1 << 40),
        _retype("labels", "<f8"),
        _retype("offsets", "<i4"),
        *map(_shorten, ("labels", "offsets", "lengths", "name_ends", "identity_ends")),
        lambda arrays: arrays.update(shards=np.full(4, 7, np.int32)),
        lambda arrays: arrays.update(shards=np.full(4, -1, np.int32)),
    ],
)
def test_index_that_lies_is_built_anew(
    data: Path,
    build: Builder,
    change: Callable[[dict[str, np.ndarray]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that somebody ships with the data: of the right size and time, with other content."""
    real = image_index._arrays

    def lying(index: ImageIndex) -> dict[str, np.ndarray]:
        arrays = {name: array.copy() for name, array in real(index).items()}
        change(arrays)
        return arrays

    with monkeypatch.context() as patch:
        patch.setattr(image_index, "_arrays", lying)
        open_index(data, "bin", [data], build)
    assert [_open(data, build).read(index) for index in range(4)] == IMAGES
    assert build.num_built == 2


@pytest.mark.timeout(20)
def test_index_that_is_a_pipe_or_nested_without_end_is_not_read(data: Path, build: Builder) -> None:
    index = data.with_name("faces.bin.index")
    index.write_bytes(b"[" * 200_000 + b"\n")
    assert _open(data, build).read(0) == b"one"
    index.unlink()
    os.mkfifo(index)
    assert _open(data, build).read(0) == b"one"


def test_place_that_no_file_has_is_an_error_of_the_image(data: Path) -> None:
    for offset, length, message in ((-5, 3, "Invalid argument"), (0, -8, "changed in use")):
        index = ImageIndex(
            identities=PackedStrings.of("a"),
            labels=np.array([0]),
            names=PackedStrings.of(["key 1"]),
            offsets=np.array([offset]),
            lengths=np.array([length]),
        )
        with pytest.raises((OSError, DatasetError), match=message):
            IndexedFaces(index, [data], image_of_parts).read(0)


def test_index_cut_anywhere_is_built_anew(data: Path, build: Builder) -> None:
    _open(data, build)
    index = data.with_name("faces.bin.index")
    whole = index.read_bytes()
    for size in range(0, len(whole), 13):
        index.write_bytes(whole[:size])
        assert _open(data, build).read(3) == b"four"
    assert index.read_bytes() == whole


def test_index_goes_to_the_cache_where_the_data_cannot_be_written_beside(
    data: Path, build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data.with_name("faces.bin.index").mkdir()  # in the way, even of root
    assert _open(data, build).read(2) == b"three"
    assert len(list((tmp_path / "cache" / "facetrain" / "index").iterdir())) == 1
    assert _open(data, build).read(2) == b"three"
    assert build.num_built == 1


def test_index_that_can_be_written_nowhere_is_an_error(
    data: Path, build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    data.with_name("faces.bin.index").mkdir()
    with pytest.raises(DatasetError, match=r"index can be written nowhere .* set XDG_CACHE_HOME"):
        _open(data, build)


def test_data_that_changes_while_it_is_read_is_an_error(data: Path, build: Builder) -> None:
    def build_slowly() -> ImageIndex:
        data.write_bytes(b"more" * 100)
        return build()

    with pytest.raises(DatasetError, match="changed while it was read; wait until"):
        _open(data, build_slowly)


def test_index_of_another_version_is_built_anew(
    data: Path, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _open(data, build)
    monkeypatch.setattr(image_index, "VERSION", image_index.VERSION + 1)
    _open(data, build)
    assert build.num_built == 2


def test_pickled_by_name_and_read_by_spawned_processes(data: Path, build: Builder) -> None:
    faces = _open(data, build)
    faces.read(0)
    assert len(pickle.dumps(faces)) < 500
    assert pickle.loads(pickle.dumps(faces)).read(3) == b"four"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(faces.read, range(4)) == IMAGES


def test_forked_processes_share_open_files(data: Path, build: Builder) -> None:
    faces = _open(data, build)
    faces.read(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(faces.read, [0, 2, 3] * 50) == [b"one", b"three", b"four"] * 50


def test_processes_that_build_at_once_get_the_same(data: Path, build: Builder) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for _ in range(10):
            jobs = [pool.apply_async(_read_all, (data, build)) for _ in range(4)]
            assert all(job.get(timeout=60) == IMAGES for job in jobs)
            names = sorted(file.name for file in data.parent.iterdir())
            assert names == ["faces.bin", "faces.bin.index"]
            data.with_name("faces.bin.index").unlink()


def _read_all(data: Path, build: Builder) -> list[bytes]:
    faces = _open(data, build)
    return [faces.read(index) for index in range(4)]


def test_file_cut_while_in_use_is_named(data: Path, build: Builder) -> None:
    faces = _open(data, build)
    os.truncate(data, 5)
    with pytest.raises(DatasetError, match=r"faces.bin: c: the file ends before the image"):
        faces.read(2)


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(600)]
    for file in files:
        file.write_text(file.name)
    index = ImageIndex(
        identities=PackedStrings.of(["Ada"]),
        labels=np.zeros(600, np.int64),
        names=PackedStrings.of("x" for _ in files),
        offsets=np.zeros(600, np.int64),
        lengths=np.array([len(file.name) for file in files]),
        shards=np.arange(600, dtype=np.int32),
    )
    faces = IndexedFaces(index, files)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert [faces.read(i) for i in range(600)] == [file.name.encode() for file in files]
    assert len(os.listdir("/proc/self/fd")) <= before + 256  # noqa: PTH208
    del faces
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
