from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats import open_faces
from facetrain_datasets.formats.tar import TarWriter

WriteTar = Callable[..., Path]


@pytest.fixture
def write_tar(tmp_path: Path) -> WriteTar:
    """Writes members, (name, content) or a `TarInfo`, into a shard."""

    def write(
        *members: tuple[str, bytes] | tarfile.TarInfo,
        name: str = "a.tar",
        format: int = tarfile.PAX_FORMAT,
    ) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w", format=format) as archive:
            for member in members:
                if isinstance(member, tarfile.TarInfo):
                    archive.addfile(member)
                    continue
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
        return path

    return write


def read_all(path: Path) -> list[tuple[str, bytes]]:
    faces = open_faces(path)
    return [(faces.identities[faces.labels[i]], faces.read(i)) for i in range(len(faces))]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([(".cls", b"0"), (".cls", b" 2\n")], ("0", "2")),
        ([(".json", b'{"label": 0}'), (".json", b'{"class": 2, "x": []}')], ("0", "2")),
        ([(".json", b'{"identity": "Ada"}'), (".json", b'{"label": "Alan"}')], ("Ada", "Alan")),
        ([(".txt", b"Ada\n"), (".TXT", "Ålan".encode())], ("Ada", "Ålan")),
        ([(".cls", b"1"), (".json", b'{"label": 3}')], ("1", "3")),
    ],
)
@pytest.mark.parametrize("image_first", [True, False])
def test_label_beside_the_image(
    write_tar: WriteTar, labels: list[tuple[str, bytes]], names: tuple[str, str], image_first: bool
) -> None:
    members = []
    for number, (suffix, content) in enumerate(labels):
        pair = [(f"s/{number}.jpg", b"image%d" % number), (f"s/{number}{suffix}", content)]
        members += pair if image_first else pair[::-1]
    expected = [(names[0], b"image0"), (names[1], b"image1")]
    assert read_all(write_tar(("s/README", b"x"), *members)) == expected


def test_folder_is_the_identity_where_there_are_no_labels(write_tar: WriteTar) -> None:
    long = "x" * 150  # needs more than one header
    members = [("f/Bo/.1.jpg", b"hidden"), (f"f/Bo/{long}.jpg", b"b"), ("./f/Ada/1.b.PNG", b"a")]
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write_tar(*members, format=format, name=f"{format}.tar")
        assert read_all(path) == [("Bo", b"b"), ("Ada", b"a")]
        assert open_faces(path).identities == ["Ada", "Bo"]
        assert open_faces(path).describe(0) == f"{path}: f/Bo/{long}.jpg"


def test_shards_are_a_folder_a_file_or_a_pattern(write_tar: WriteTar, tmp_path: Path) -> None:
    for number in (9, 10, 11):
        write_tar(("a.jpg", b"%d" % number), ("a.cls", b"0"), name=f"f-{number:03d}.tar")

    def images(path: str) -> list[bytes]:
        return [image for _, image in read_all(tmp_path / path)]

    assert images("") == images("f-{009..011}.tar") == [b"9", b"10", b"11"]
    assert images("f-010.tar") == [b"10"]
    assert images("f-{010..011}.tar") == [b"10", b"11"]
    with pytest.raises(DatasetError, match=r"f-012.tar: no such file; give a .tar"):
        images("f-{010..012}.tar")
    with pytest.raises(DatasetError, match=r"\{012..010\} names -1 files"):
        images("f-{012..010}.tar")
    with pytest.raises(DatasetError, match=r"names 1000000000 files"):
        images("f-{000..999999999}.tar")


def test_new_shard_in_the_folder_is_seen(write_tar: WriteTar, tmp_path: Path) -> None:
    write_tar(("p/a.jpg", b"a"), name="0.tar")
    assert len(open_faces(tmp_path)) == 1
    write_tar(("p/b.jpg", b"b"), name="1.tar")
    assert len(open_faces(tmp_path)) == 2


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("/etc/1.jpg", b"x"), r"'/etc/1.jpg' leads out of the folder"),
        (("a/../../1.jpg", b"x"), r"'a/../../1.jpg' leads out of the folder"),
        (("..\\1.jpg", b"x"), r"leads out of the folder"),
        (("../notes", b"x"), r"leads out of the folder"),
        (special("../..", tarfile.DIRTYPE), r"leads out of the folder"),
        (special("p/1.jpg", tarfile.SYMTYPE, "/etc/passwd"), r"is a link, a device or a sparse"),
        (special("p/1.jpg", tarfile.LNKTYPE, "p/2.jpg"), r"is a link, a device or a sparse"),
        (special("p/1.jpg", tarfile.FIFOTYPE), r"is a link, a device or a sparse"),
        (("1.jpg", b"x"), r"1.jpg: an image with neither a label nor a folder"),
    ],
)
def test_member_that_cannot_be_trusted_or_used_is_named(
    write_tar: WriteTar, member: tuple[str, bytes] | tarfile.TarInfo, reason: str
) -> None:
    with pytest.raises(DatasetError, match=reason):
        open_faces(write_tar(member))


@pytest.mark.parametrize(
    "kind",
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK],
)
def test_giant_name_of_a_member_is_not_read(tmp_path: Path, kind: bytes) -> None:
    header = special("x", kind)
    header.size = 7 << 30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(20 << 30)  # sparse: it is all there, and takes no room
    with pytest.raises(DatasetError, match=r"a name of 7,516,192,768 bytes at byte 0; restore"):
        open_faces(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.jpg", b"x"), ("a.cls", b"one")], r"a.cls: expected a class id, found 'one'"),
        ([("a.jpg", b"x"), ("a.cls", b"-1")], r"a.cls: expected a class id, found '-1'"),
        ([("a.jpg", b"x"), ("a.cls", b"9" * 30)], r"a.cls: expected a class id"),
        ([("a.jpg", b"x"), ("a.cls", b"999999999")], r"class ids up to 999999999 for 1 images"),
        ([("a.jpg", b"x"), ("a.json", b"{}")], r"a.json: no label or identity or class in it"),
        ([("a.jpg", b"x"), ("a.json", b'{"label": "\\ud800"}')], r"a.json: no label or identity"),
        ([("a.jpg", b"x"), ("a.json", b"[" * 9000)], r"a.json: no label or identity"),
        ([("a.jpg", b"x"), ("a.json", b'{"label": true}')], r"a.json: no label or identity"),
        ([("a.jpg", b"x"), ("a.json", b'{"label": -4}')], r"a.jpg: label -4; allowed: class ids"),
        ([("a.jpg", b"x"), ("a.png", b"x"), ("a.cls", b"0")], r"a: several images of one name"),
        ([("p/a.jpg", b"x"), ("p/a.jpg", b"y")], r"p/a: several images of one name"),
        ([("a.cls", b"0"), ("b.jpg", b"x")], r"a.cls: a label without its image beside it"),
        ([("a.jpg", b"x"), ("a.cls", b"0"), ("p/b.jpg", b"x")], r"b.jpg: no label beside it"),
        ([("p/b.jpg", b"x"), ("p/c.jpg", b"x"), ("p/c.cls", b"0")], r"c.jpg: a label beside it"),
        (
            [("a.jpg", b"x"), ("a.cls", b"0"), ("b.jpg", b"x"), ("b.txt", b"Ada")],
            r"b.jpg: label 'Ada' where those before are numbers",
        ),
        ([("a.txt", b"x")], r"a.tar: no image in it"),
        ([("a.jpg", b"x"), ("a.cls", bytes(2 << 20))], r"a.cls: 2097152 bytes for a label"),
    ],
)
def test_labels_that_cannot_be_are_named(
    write_tar: WriteTar, members: list[tuple[str, bytes]], reason: str
) -> None:
    with pytest.raises(DatasetError, match=reason):
        open_faces(write_tar(*members))


def test_compressed_shard_is_refused(tmp_path: Path) -> None:
    for mode, kind in (("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")):
        with tarfile.open(tmp_path / "a.tar", mode):
            pass
        with pytest.raises(DatasetError, match=f"a.tar: compressed with {kind}; .*uncompress"):
            open_faces(tmp_path / "a.tar")
    (tmp_path / "a.tar").rename(tmp_path / "a.tar.gz")
    with pytest.raises(DatasetError, match="compressed with xz"):
        open_faces(tmp_path / "a.tar.gz")


def test_shard_cut_anywhere_or_damaged_is_named(write_tar: WriteTar, tmp_path: Path) -> None:
    path = write_tar(("p/a.jpg", b"x" * 700), ("p/b.jpg", b"y" * 10))
    whole = path.read_bytes()
    end = 512 * 5  # two headers, data of two blocks and of one; zeros follow
    for size in (0, 100, 512, 1000, 1536, 1700, 2048, 2300, end - 1, end):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"a.tar: cut, damaged or no tar: .*; restore"):
            open_faces(path)
    path.write_bytes(whole[:1600] + b"\xff" + whole[1601:])  # in the second header
    with pytest.raises(DatasetError, match=r"bad checksum at byte 1536"):
        open_faces(path)
    path.write_bytes(whole[: end + 512])
    assert len(open_faces(path)) == 2


def test_joined_archives_are_refused(write_tar: WriteTar) -> None:
    path = write_tar(("p/a.jpg", b"a"))
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DatasetError, match=r"a.tar: goes on after its end: .* --concatenate"):
        open_faces(path)


def test_written_shards_are_samples_with_class_ids(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path, ["Ada", "Alan"], np.array([1, 0, 1]))
    png = cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes()
    writer.finish(writer.write(2, [b"c"], writer.write(0, [b"a", png], 0)))
    with tarfile.open(tmp_path / "000000.tar") as archive:
        names = ["000000000.cls", "000000000.jpg", "000000001.cls", "000000001.png"]
        assert archive.getnames() == names
        assert archive.extractfile("000000000.cls").read() == b"1"  # type: ignore[union-attr]
    assert read_all(tmp_path) == [("Alan", b"a"), ("Ada", png), ("Alan", b"c")]


def test_real_archive_without_identities_is_refused_by_name(
    shared_data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "small.tar"
    path.write_bytes((shared_data / "formats" / "insightface_small_dataset.tar").read_bytes())
    faces = open_faces(path)
    assert faces.identities == ["images"]
    assert len(faces) == 10
    assert all(faces.read(index)[:2] == b"\xff\xd8" for index in range(10))
