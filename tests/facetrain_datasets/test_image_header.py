from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facetrain_datasets.image_header import ImageHeader, is_usual_jpeg, read_image_header

_KINDS = {
    ".jpg": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".bmp": "bmp",
    ".ppm": "pnm",
}


def _encoded(suffix: str, *shape: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return cv2.imencode(suffix, pixels)[1].tobytes()


@pytest.mark.parametrize("suffix", _KINDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (20, 31), (300, 7)])
def test_size_and_channels_of_every_format(suffix: str, height: int, width: int) -> None:
    expected = ImageHeader(_KINDS[suffix], width, height, 3)
    assert read_image_header(_encoded(suffix, height, width, 3)) == expected


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".pgm"])
def test_grey_images_have_one_channel(suffix: str) -> None:
    header = read_image_header(_encoded(suffix, 20, 31))
    assert header is not None
    assert (header.width, header.height, header.num_channels) == (31, 20, 1)


def test_progressive_jpeg_and_lossless_webp_and_alpha() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 31, 4), dtype=np.uint8)
    progressive = cv2.imencode(".jpg", pixels[:, :, :3], (cv2.IMWRITE_JPEG_PROGRESSIVE, 1))[1]
    lossless = cv2.imencode(".webp", pixels[:, :, :3], (cv2.IMWRITE_WEBP_QUALITY, 101))[1]
    for data in (progressive, lossless, *(cv2.imencode(s, pixels)[1] for s in (".png", ".webp"))):
        header = read_image_header(data.tobytes())
        assert header is not None
        assert header[1:] == (31, 20, 3)


def test_jpeg_with_fill_bytes_and_a_long_segment_before_the_frame() -> None:
    data = _encoded(".jpg", 20, 31, 3)
    comment = b"\xff\xff\xff\xfe" + (5002).to_bytes(2, "big") + b"x" * 5000
    assert read_image_header(data[:2] + comment + data[2:]) == ImageHeader("jpeg", 31, 20, 3)


def test_png_whose_chunks_do_not_fit_is_none() -> None:
    data = _encoded(".png", 20, 31, 3)
    at = data.index(b"IDAT") - 4
    wrong_length = b"\xff\x00\x20\x00"  # OpenCV 5 would take 4 GiB for it
    wrong_checksum = bytes([data[-17] ^ 1])
    for changed in (
        data[:at] + wrong_length + data[at + 4 :],
        data[:-12] + b"\x7f" + data[-11:],
        data[:-12],
        data[:-17] + wrong_checksum + data[-16:],
        data[:8] + data[at:-12] + data[8:at] + data[-12:],  # the header is not the first
    ):
        assert read_image_header(changed) is None
    assert read_image_header(data + b"more") == ImageHeader("png", 31, 20, 3)


@pytest.mark.parametrize("progressive", [0, 1])
def test_jpeg_without_its_end_is_none(progressive: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (112, 112, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_PROGRESSIVE, progressive))[1].tobytes()
    size = (112).to_bytes(2, "big") * 2
    assert read_image_header(data + b"\0padding") == ImageHeader("jpeg", 112, 112, 3)
    for end in (-1, -2, len(data) // 2):
        assert read_image_header(data[:end]) is None
        assert not is_usual_jpeg(data[:end], size)
    thumbnail = b"\xff\xe1\x00\x06\xff\xd9\xff\xd9"  # ends of its own before the frame
    assert read_image_header(data[:2] + thumbnail + data[2:-2]) is None


def test_giant_numbers_in_pnm() -> None:
    assert read_image_header(b"P6 " + b"1" * 500 + b" 1 255\n") is None


def test_comments_in_pnm() -> None:
    data = b"P5 # made by hand\n# twice\n31\n# more\n20 255\n" + bytes(620)
    assert read_image_header(data) == ImageHeader("pnm", 31, 20, 1)


@pytest.mark.parametrize("suffix", [*_KINDS, ".pgm"])
def test_a_header_cut_anywhere_is_none(suffix: str) -> None:
    data = _encoded(suffix, 20, 31) if suffix == ".pgm" else _encoded(suffix, 20, 31, 3)
    whole = read_image_header(data)
    needed = next(n for n in range(len(data) + 1) if read_image_header(data[:n]) == whole)
    assert all(read_image_header(data[:n]) is None for n in range(needed))


@pytest.mark.parametrize("data", [b"", b"hello", b"GIF89a\x01\x00\x01\x00", bytes(100)])
def test_other_bytes_are_none(data: bytes) -> None:
    assert read_image_header(data) is None


def test_real_faces(shared_data: Path) -> None:
    for path in sorted((shared_data / "lfw112").glob("Aa*/*.jpg")):
        assert read_image_header(path.read_bytes()) == ImageHeader("jpeg", 112, 112, 3)
        assert is_usual_jpeg(path.read_bytes(), b"\0\x70\0\x70")
    for path in sorted((shared_data / "orl" / "s1").iterdir()):
        header = read_image_header(path.read_bytes())
        assert header == ImageHeader("pnm", 92, 112, 1), path


@given(st.integers(0, 220), st.binary(max_size=6), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_shortcut_never_says_other_than_the_walk(at: int, change: bytes, insert: bool) -> None:
    data = bytearray(_encoded(".jpg", 20, 31, 3))
    data[at : at if insert else at + len(change)] = change
    if is_usual_jpeg(bytes(data), b"\0\x14\0\x1f"):
        assert read_image_header(bytes(data)) == ImageHeader("jpeg", 31, 20, 3)


def test_the_shortcut_knows_what_opencv_writes() -> None:
    data = _encoded(".jpg", 20, 31, 3)
    assert is_usual_jpeg(data, b"\0\x14\0\x1f")
    assert not is_usual_jpeg(data, b"\0\x1f\0\x14")
    assert not is_usual_jpeg(_encoded(".jpg", 20, 31), b"\0\x14\0\x1f")
