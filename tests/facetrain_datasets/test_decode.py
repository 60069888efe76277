from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import cv2
import numpy as np
import pytest

from facetrain_datasets.decode import check_images, decode_image, decode_photo
from facetrain_datasets.errors import DatasetError
from facetrain_datasets.formats.image_folder import ImageFolder


def _pixels(size: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_pixels_come_back_as_rgb(encode: Callable) -> None:
    image = decode_image(encode(_pixels()), "x", 16, False)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, _pixels())


def test_jpeg_equals_the_reference_decoder() -> None:
    data = cv2.imencode(".jpg", _pixels(112))[1].tobytes()
    expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    np.testing.assert_array_equal(decode_image(data, "x", 112, False), expected)


def test_grey_image_is_refused_or_repeated(encode: Callable) -> None:
    grey = _pixels()[:, :, 0]
    with pytest.raises(DatasetError, match=r"^a\.png: image is grey \(1 channel\).*allow_grey"):
        decode_image(encode(grey), "a.png", 16, False)
    repeated = decode_image(encode(grey), "a.png", 16, True)
    np.testing.assert_array_equal(repeated, np.stack([grey] * 3, axis=-1))


def test_other_size_names_both(encode: Callable) -> None:
    image = np.zeros((20, 16, 3), np.uint8)
    with pytest.raises(DatasetError, match=r"^a\.png: image is 16x20, expected 16x16; align"):
        decode_image(encode(image), "a.png", 16, False)


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8\xff\xe0"])
def test_unreadable_image_is_named(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^a\.jpg: not a readable image"):
        decode_image(data, "a.jpg", 16, False)


def test_header_of_giant_dimensions_is_refused_before_decoding(encode: Callable) -> None:
    data = bytearray(encode(_pixels()))
    data[16:24] = (2**19).to_bytes(4, "big") * 2  # PNG: width and height, in the IHDR chunk
    data[29:33] = crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(DatasetError, match=r"^a\.png: image is 524288x524288, expected 16x16"):
        decode_image(bytes(data), "a.png", 16, False)
    with pytest.raises(DatasetError, match=r"^a\.png: .* more than 100,000,000 pixels"):
        decode_photo(bytes(data), "a.png")


def test_photo_of_any_size_within_the_limit(encode: Callable) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_photo(encode(image), "x", max_pixels=620), image)
    grey = decode_photo(encode(image[:, :, 0]), "x")
    np.testing.assert_array_equal(grey, np.stack([image[:, :, 0]] * 3, axis=-1))
    with pytest.raises(DatasetError, match=r"^x: image is 31x20, more than 619 pixels"):
        decode_photo(encode(image), "x", max_pixels=619)
    with pytest.raises(DatasetError, match=r"^x: not a readable image"):
        decode_photo(encode(image)[:60], "x")


def test_photo_on_its_side_is_turned_upright() -> None:
    image = np.zeros((16, 32, 3), np.uint8)
    image[:, :16] = 255
    data = cv2.imencode(".jpg", image)[1].tobytes()
    # EXIF with the one field Orientation = 6: the picture's top is on the right.
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    upright = decode_photo(data[:2] + segment + data[2:], "x")
    np.testing.assert_array_equal(upright, np.rot90(image, -1))


def test_photo_of_a_thousand_scans_is_refused() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    data = cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_PROGRESSIVE, 1))[1].tobytes()
    start = data.rindex(b"\xff\xda")
    decode_photo(data, "a.jpg")
    with pytest.raises(DatasetError, match=r"a\.jpg: a JPEG of 1\d\d\d scans, more than 100"):
        decode_photo(data[:start] + data[start:-2] * 1000 + data[-2:], "a.jpg")


def test_half_a_file_is_unreadable() -> None:
    data = cv2.imencode(".jpg", _pixels(112))[1].tobytes()
    with pytest.raises(DatasetError, match="not a readable image"):
        decode_image(data[: len(data) // 2], "a.jpg", 112, False)


def test_check_finds_every_kind_of_bad_image(make_source: Callable, encode: Callable) -> None:
    source = make_source(200)
    source.images[7] = b"broken"
    source.images[70] = encode(np.zeros((16, 16), np.uint8))
    source.images[199] = encode(np.zeros((8, 8, 3), np.uint8))
    bad = check_images(source, image_size=16, allow_grey=False)
    assert [(b.index, b.where) for b in bad] == [(7, "image7"), (70, "image70"), (199, "image199")]
    assert "not a readable" in bad[0].reason
    assert "grey" in bad[1].reason
    assert "8x8" in bad[2].reason
    assert [b.index for b in check_images(source, image_size=16, allow_grey=True)] == [7, 199]


def test_check_of_a_sample_is_seeded_and_bounded(make_source: Callable) -> None:
    source = make_source(200)
    source.images = [b"broken"] * 200
    first, again, other = (
        [b.index for b in check_images(source, image_size=16, allow_grey=False, limit=50, seed=s)]
        for s in (1, 1, 2)
    )
    assert len(set(first)) == 50
    assert first == sorted(first) == again != other


def test_check_reports_a_vanished_file(write_folder: Callable) -> None:
    source = ImageFolder(write_folder({"a": ["1.png", "2.png"]}))
    Path(source.path(1)).unlink()
    (bad,) = check_images(source, image_size=16, allow_grey=False)
    assert bad.index == 1
    assert "No such file" in bad.reason


def test_check_limit_below_one_is_refused(make_source: Callable) -> None:
    with pytest.raises(DatasetError, match="limit is 0"):
        check_images(make_source(3), image_size=16, allow_grey=False, limit=0)
