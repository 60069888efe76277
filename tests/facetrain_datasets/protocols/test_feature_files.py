from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.feature_files import (
    is_feature_path,
    read_features,
    read_megaface_file,
    write_megaface_file,
)

ROWS = np.arange(21, dtype=np.float32).reshape(7, 3)


def test_npy_is_read_by_rows_and_as_a_whole(tmp_path: Path) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        np.save(tmp_path / "f.npy", ROWS.astype(dtype))
        features = read_features(tmp_path / "f.npy")
        assert (len(features), features.size, features.names) == (7, 3, None)
        assert features.embeddings.dtype == np.float32
        np.testing.assert_array_equal(features.embeddings, ROWS)
        np.testing.assert_array_equal(features.rows(2, 5), ROWS[2:5])
        np.testing.assert_array_equal(np.concatenate(list(features.blocks(3))), ROWS)


@pytest.mark.parametrize("keys", [("embeddings", "identities"), ("features", "labels")])
def test_npz_has_names_and_identities(tmp_path: Path, keys: tuple[str, str]) -> None:
    arrays: dict[str, Any] = {
        keys[0]: ROWS,
        keys[1]: np.arange(7),
        "names": np.array(list("abcdefg")),
    }
    np.savez(tmp_path / "f.npz", **arrays)
    features = read_features(tmp_path / "f.npz")
    np.testing.assert_array_equal(features.embeddings, ROWS)
    assert features.names == list("abcdefg")
    assert features.identities == list("0123456")


def test_folder_of_npy_files_is_one_after_another(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", ROWS[4:])
    np.save(tmp_path / "a.npy", ROWS[:4])
    features = read_features(tmp_path)
    assert is_feature_path(tmp_path)
    np.testing.assert_array_equal(features.rows(3, 6), ROWS[3:6])
    np.save(tmp_path / "c.npy", ROWS[:, :2])
    with pytest.raises(DatasetError, match=r"files of sizes \[2, 3\]"):
        read_features(tmp_path)


def test_megaface_files_by_the_bytes_and_as_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "facescrub" / "Ann"
    folder.mkdir(parents=True)
    # Written out: N = 3, 1, 4, 5, then three floats, little-endian.
    data = bytes.fromhex("03000000 01000000 04000000 05000000 0000803f 00000040 000040c0")
    (folder / "1_x.bin").write_bytes(data)
    assert read_megaface_file(folder / "1_x.bin").tolist() == [1.0, 2.0, -3.0]
    (tmp_path / "facescrub" / "Bob").mkdir()
    write_megaface_file(tmp_path / "facescrub" / "Bob" / "2_x.bin", ROWS[6])
    assert is_feature_path(tmp_path)
    features = read_features(tmp_path)
    assert features.names == ["facescrub/Ann/1_x.bin", "facescrub/Bob/2_x.bin"]
    assert features.identities == ["Ann", "Bob"]
    np.testing.assert_array_equal(features.embeddings, [[1, 2, -3], [18, 19, 20]])
    assert read_features(folder / "1_x.bin").names == ["1_x.bin"]
    write_megaface_file(folder / "3_x.bin", np.ones(4, np.float32))
    with pytest.raises(DatasetError, match=r"3_x\.bin: size 4, others have 3"):
        read_features(tmp_path).embeddings  # noqa: B018 - read when asked for


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.npy", b"", "not a readable .npy"),
        ("f.npy", b"\x93NUMPY\x01\x00", "not a readable .npy"),
        ("f.npy", np.arange(3.0), r"'float64' \[3\], expected floats \[images, size\]"),
        ("f.npy", np.zeros((2, 3), int), "int64"),
        ("f.npy", np.zeros((0, 3)), "no rows"),
        ("f.npy", np.array([[print]]), "not a readable .npy"),
        ("f.npz", b"PK", "not a readable .npz"),
        ("f.npz", {"x": ROWS}, r"arrays \['x'\], expected one called embeddings"),
        ("f.npz", {"embeddings": ROWS, "names": np.array(["a"])}, r"names \[1\], expected one"),
        ("f.npz", {"embeddings": ROWS, "names": np.array([print] * 7)}, "not a readable .npz"),
        ("f.npz", ROWS, "not an .npz archive"),
        ("f.npy", {"embeddings": ROWS}, "not a readable .npy"),
        ("f.bin", b"", "not a MegaFace feature file"),
        ("f.bin", b"\x03\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00", "16 bytes"),
        ("f.bin", pickle.dumps(1) * 8, "not a MegaFace"),
        ("f.txt", b"1 2 3", "not one of .npy, .npz, .bin"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        with path.open("wb") as file:
            np.savez(file, **content)
    else:
        with path.open("wb") as file:
            np.save(file, content, allow_pickle=True)
    with pytest.raises(DatasetError, match=message) as error:
        read_features(path)
    assert name in str(error.value)


@pytest.mark.filterwarnings("error")
def test_odd_files_of_numpy_are_one_error_without_a_warning(tmp_path: Path) -> None:
    def npy(header: str) -> bytes:
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()

    (tmp_path / "f.npy").write_bytes(
        npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, {2**62}), }}\n")
    )
    with pytest.raises(DatasetError, match="not a readable"):
        read_features(tmp_path / "f.npy")
    path = tmp_path / "f.npz"
    giant = npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**15}, 512), }}\n")
    for name, content in (
        ("embeddings.npy", giant),
        ("embeddings.npy", npy("(" * 900)),
        ("embeddings", b"no array"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)
        with pytest.raises(DatasetError, match=r"f\.npz: (not a readable .npz|its embeddings)"):
            read_features(path)
    np.savez(path, embeddings=ROWS)
    encrypted = bytearray(path.read_bytes())
    encrypted[6] |= 1
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(DatasetError, match="not a readable"):
        read_features(path)
    np.savez(path, embeddings=ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("names.npy", bytes(200))
    path.write_bytes(path.read_bytes().replace(b"\x09\x04\x05\x00\x5d", b"\x09\x04\x05\x00\xff"))
    with pytest.raises(DatasetError, match="not a readable"):
        read_features(path)


def test_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("embeddings.npy", "w") as member:
            np.save(member, ROWS)
        archive.writestr("other.npy", bytes(100 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DatasetError, match=r"other\.npy unpacks from .* to 104,857,600"):
        read_features(path)


def test_doubles_too_large_for_floats_are_infinite(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.full((2, 3), 1e300))
    assert np.isinf(read_features(tmp_path / "f.npy").embeddings).all()


def test_absent_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        read_features(tmp_path / "absent.npy")
    with pytest.raises(DatasetError, match=r"no \.npy and no \.bin"):
        read_features(tmp_path)
    assert not is_feature_path(tmp_path)
