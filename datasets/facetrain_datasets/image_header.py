"""Size and channels of an encoded image, before anything is decoded.

A file of a few kilobytes can claim a billion pixels, so sizes are looked at first; and only the
formats below are decoded at all, not the dozen others that OpenCV would try. A PNG whose chunks do
not fit into it is none (OpenCV takes memory for what they claim), nor is a JPEG without its end
(OpenCV makes the rest grey). JPEG: ITU-T T.81,
B.2.2; PNG: ISO/IEC 15948; WebP: RFC 9649; BMP: BITMAPINFOHEADER; PNM: netpbm's P5 and P6.

    header = read_image_header(data)  # ImageHeader("jpeg", width=112, height=112, num_channels=3)
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

import numpy as np

_JPEG_START_OF_FRAME = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
# What most writers begin a colour JPEG with: JFIF, one or two quantisation tables, the frame.
_USUAL_JPEG = re.compile(
    rb"\xff\xd8\xff\xe0\x00\x10.{14}(?:(?:\xff\xdb\x00\x43.{65}){1,2}|\xff\xdb\x00\x84.{130})"
    rb"\xff[\xc0\xc2]\x00\x11.(.{4})\x03",
    re.DOTALL,
)
_JPEG_END = b"\xff\xd9"
_JPEG_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 1, 6: 3}  # alpha is not counted: it is dropped
_PNM = re.compile(rb"P([56])(?:\s+|#[^\n]*\n)+(\d{1,9})(?:\s+|#[^\n]*\n)+(\d{1,9})\s")
_PNM_MAX_BYTES = 1024


class ImageHeader(NamedTuple):
    """What an image file says of itself; `num_channels` is 1 (grey) or 3."""

    kind: str
    width: int
    height: int
    num_channels: int


def read_image_header(data: bytes) -> ImageHeader | None:
    """The header of a JPEG, PNG, WebP, BMP or PNM image; None for all else and for damaged ones."""
    try:
        if data[:2] == b"\xff\xd8":
            return _jpeg(data)
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return _png(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:2] == b"BM":
            return _bmp(data)
        match = _PNM.match(data[:_PNM_MAX_BYTES])
        if match:
            kind, width, height = map(int, match.groups())
            return _checked("pnm", width, height, 1 if kind == 5 else 3)
    except (struct.error, IndexError, KeyError):  # cut short, or a code there is none of
        return None
    return None


def is_usual_jpeg(data: bytes, height_width: bytes) -> bool:
    """Whether this is a colour JPEG of that size which begins as most writers begin it.

    A shortcut for the case that fills training sets: a fifth of the time of `read_image_header`,
    which says the same wherever this is true. False says nothing.

    Args:
        height_width: both as big-endian u16.
    """
    usual = _USUAL_JPEG.match(data)
    return usual is not None and usual[1] == height_width and data.endswith(_JPEG_END)


def _checked(kind: str, width: int, height: int, num_channels: int) -> ImageHeader | None:
    return ImageHeader(kind, width, height, num_channels) if width and height else None


def _jpeg(data: bytes) -> ImageHeader | None:
    at = 2
    while True:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _JPEG_START_OF_FRAME:
            height, width, components = struct.unpack_from(">HHB", data, at + 5)
            if data.rfind(_JPEG_END, at) < 0:
                return None
            return _checked("jpeg", width, height, 1 if components == 1 else 3)
        if marker == 0xFF or marker in _JPEG_WITHOUT_LENGTH:  # a fill byte, or a bare marker
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])


def _png(data: bytes) -> ImageHeader | None:
    at = 8
    header = None
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) != checksum:
            return None
        if header is None:
            if kind != b"IHDR":
                return None
            width, height, _, color = struct.unpack_from(">IIBB", data, at + 8)
            header = _checked("png", width, height, _PNG_CHANNELS[color])
        if header is None or kind == b"IEND":
            return header
        at += 12 + length


def _webp(data: bytes) -> ImageHeader | None:
    chunk = data[12:16]
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return _checked("webp", width & 0x3FFF, height & 0x3FFF, 3)
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return _checked("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 3)
    if chunk == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", data, 24)
        width, height = low_width | high_width << 16, low_height | high_height << 16
        return _checked("webp", width + 1, height + 1, 3)
    return None


def _bmp(data: bytes) -> ImageHeader | None:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes < 40:
        return None
    width, height, _, bits_per_pixel = struct.unpack_from("<iiHH", data, 18)
    num_channels = 3
    if bits_per_pixel <= 8:
        (num_colors,) = struct.unpack_from("<I", data, 46)
        start = 14 + header_bytes
        stop = start + 4 * min(num_colors or 256, 1 << bits_per_pixel)
        palette = np.frombuffer(data[start:stop], np.uint8)
        palette = palette[: len(palette) // 4 * 4].reshape(-1, 4)
        is_grey = (palette[:, 0] == palette[:, 1]) & (palette[:, 1] == palette[:, 2])
        num_channels = 1 if is_grey.all() else 3
    return _checked("bmp", abs(width), abs(height), num_channels)
