from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facetrain_datasets.convert import SetChecksum, convert
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import FORMATS, open_faces
from facetrain_datasets.formats.tar import TarWriter
from facetrain_datasets.source import FaceSource


class Faces:
    """Faces in no order of identities, some twice, one identity without any; may fail to read."""

    def __init__(self, num_images: int = 23) -> None:
        numbers = random.Random(0)
        self.identities = ("Zoe", "nobody", "Åsa", "Bo Jr.")
        self.images = [
            b"\xff\xd8%d\x0a\x23\xd7\xce" % (number // 2) + bytes(number)
            for number in range(num_images)
        ]
        self.labels = np.array([numbers.choice([0, 2, 3]) for _ in self.images], dtype=np.int64)
        self.num_reads = 0
        self.fail: Callable[[int], None] = lambda _: None

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        self.num_reads += 1
        self.fail(self.num_reads)
        return self.images[index]

    def describe(self, index: int) -> str:
        return f"image {index}"


def pairs(source: FaceSource) -> list[tuple[str, bytes]]:
    return sorted(
        (source.identities[source.labels[index]], source.read(index))
        for index in range(len(source))
    )


@pytest.mark.parametrize("before", FORMATS)
@pytest.mark.parametrize("after", FORMATS)
def test_between_any_two_formats_nothing_is_lost(before: str, after: str, tmp_path: Path) -> None:
    source = Faces()
    first = convert(source, tmp_path / "first", before, images_per_file=10)
    middle = open_faces(tmp_path / "first")
    result = convert(middle, tmp_path / "second", after, images_per_file=7)
    assert result.checksum == first.checksum
    assert result.num_images == 23
    assert pairs(open_faces(tmp_path / "second")) == pairs(source)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first", "second"]
    assert not list((tmp_path / "second").glob(".*"))


@pytest.mark.parametrize("format", ["rec", "tar", "parquet"])
def test_formats_of_class_ids_keep_identities_without_images(format: str, tmp_path: Path) -> None:
    source = Faces()
    convert(source, tmp_path / "out", format)
    assert open_faces(tmp_path / "out").identities == source.identities


@pytest.mark.parametrize("format", FORMATS)
def test_killed_at_any_image_it_goes_on_where_it_was(format: str, tmp_path: Path) -> None:
    expected = convert(Faces(), tmp_path / "whole", format, images_per_file=5)
    for last in (1, 4, 5, 6, 12, 22):
        out = tmp_path / f"killed-{last}"

        def die(num_reads: int, last: int = last) -> None:
            if num_reads > last:
                os._exit(9)

        killed = Faces()
        killed.fail = die
        process = multiprocessing.get_context("fork").Process(
            target=convert, args=(killed, out, format), kwargs={"images_per_file": 5}
        )
        process.start()
        process.join()
        assert process.exitcode == 9
        assert not out.exists()
        source = Faces()
        result = convert(source, out, format, images_per_file=5)
        assert result.num_resumed == last // 5 * 5
        assert source.num_reads == 23 - result.num_resumed
        assert result.checksum == expected.checksum
        for file in (tmp_path / "whole").rglob("*"):
            again = out / file.relative_to(tmp_path / "whole")
            if file.is_file() and file.suffix != ".index":
                assert again.read_bytes() == file.read_bytes()
        assert not list(out.glob(".*"))


def test_interrupted_verification_reads_the_source_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("facetrain_datasets.convert._REPORT_EVERY", 30)
    with pytest.raises(KeyboardInterrupt):
        convert(Faces(), tmp_path / "out", "rec", progress=interrupt)
    source = Faces()
    assert convert(source, tmp_path / "out", "rec").num_resumed == 23
    assert source.num_reads == 0


def test_written_set_that_differs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lossy(TarWriter):
        def write(self, first: int, images: Iterable[bytes], position: int) -> int:
            return super().write(first, [*list(images)[:-1], b"other"], position)

    monkeypatch.setitem(FORMATS, "tar", replace(FORMATS["tar"], writer=Lossy))
    with pytest.raises(DatasetError, match=r"23 images with checksum \w+, expected 23 with"):
        convert(Faces(), tmp_path / "out", "tar")
    assert not (tmp_path / "out").exists()


def test_unfinished_conversion_of_another_set_is_not_mixed_in(tmp_path: Path) -> None:
    def fail(num_reads: int) -> None:
        if num_reads > 10:
            raise OSError("gone")

    source = Faces()
    source.fail = fail
    with pytest.raises(OSError, match="gone"):
        convert(source, tmp_path / "out", "tar", images_per_file=5)
    with pytest.raises(DatasetError, match=r".out.partial: left by the conversion of another set"):
        convert(Faces(22), tmp_path / "out", "tar", images_per_file=5)
    journal = tmp_path / ".out.partial" / ".conversion.json"
    right = json.loads(journal.read_text())
    wrong = [{**right, name: value} for name in right for value in ("5", None, -1, 0.5)]
    for content in ("{", "[]", "[" * 100_000, "{}", *map(json.dumps, [*wrong, {**right, "x": 1}])):
        journal.write_text(content)
        with pytest.raises(DatasetError, match=r"partial: left by the conversion of another set"):
            convert(Faces(), tmp_path / "out", "tar", images_per_file=5)
    journal.write_text(json.dumps(right))
    assert convert(Faces(), tmp_path / "out", "tar", images_per_file=5).num_resumed == 10


def test_two_processes_do_not_write_one_destination(tmp_path: Path) -> None:
    def convert_too(num_reads: int) -> None:
        if num_reads == 10:
            with pytest.raises(DatasetError, match=r"partial: another process is writing it"):
                convert(Faces(), tmp_path / "out", "folder", images_per_file=5)

    source = Faces()
    source.fail = convert_too
    convert(source, tmp_path / "out", "folder", images_per_file=5)
    assert len(open_faces(tmp_path / "out")) == 23
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not list((tmp_path / "out").glob(".*"))


def test_nothing_is_left_of_a_conversion_that_cannot_begin(tmp_path: Path) -> None:
    source = Faces()
    source.identities = ("..", "x", "y", "z")
    with pytest.raises(DatasetError, match="not the name of a folder"):
        convert(source, tmp_path / "out", "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", list(FORMATS))
def test_a_full_disk_names_the_file(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names no file where a write fails; here one that fails when it is closed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*\.out\.partial/.+'"):
            convert(Faces(), tmp_path / "out", format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_destination_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert(Faces(), tmp_path / "out", "rec")  # an empty folder is as good as none
    with pytest.raises(DatasetError, match=r"out: exists; delete it or choose another"):
        convert(Faces(), tmp_path / "out", "rec")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"format 'zip'; known: folder, list, rec, tar, parquet"):
        convert(Faces(), tmp_path / "out", "zip")
    with pytest.raises(DatasetError, match=r"images_per_file is 0"):
        convert(Faces(), tmp_path / "out", "rec", images_per_file=0)


@pytest.mark.parametrize(
    ("format", "names", "reason"),
    [
        ("folder", ("a", "../../etc"), r"identity '../../etc': not the name of a folder"),
        ("folder", ("a", ".hidden"), r"identity '.hidden': not the name of a folder"),
        ("list", ("a", ""), r"identity '': not the name of a folder"),
        ("folder", ("a", "a"), r"identity 'a': the name of two identities"),
        ("tar", ("a", "b\nc"), r"a line break in a name; rename it"),
    ],
)
def test_names_that_a_format_cannot_hold_are_refused(
    tmp_path: Path, format: str, names: tuple[str, ...], reason: str
) -> None:
    source = Faces()
    source.identities = (*names, "x", "y")
    with pytest.raises(DatasetError, match=reason):
        convert(source, tmp_path / "out", format)
    assert [f.name for f in tmp_path.rglob("*") if "etc" in f.name] == []


def test_progress_counts_writing_and_verifying(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    convert(Faces(300), tmp_path / "out", "rec", progress=lambda *call: calls.append(call))
    assert calls == [(256, 600), (512, 600), (600, 600)]


def test_checksum_is_of_the_pairs_in_any_order() -> None:
    def checksum(*pairs: tuple[str, bytes]) -> str:
        total = SetChecksum()
        for pair in pairs:
            total.add(*pair)
        return str(total)

    a, b = ("Ada", b"1"), ("Bo", b"2")
    assert checksum(a, b) == checksum(b, a)
    assert len({checksum(a), checksum(b), checksum(a, b), checksum(a, a), checksum()}) == 5
    assert checksum(("Ada", b"1")) != checksum(("Ad", b"a1"))
    digest = hashlib.blake2b(b"Ada\0" + b"1", digest_size=16).digest()
    assert checksum(a) == digest[::-1].hex()
