"""From encoded bytes to a uint8 RGB image, and a check of a whole source before training."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.image_header import is_usual_jpeg, read_image_header
from facetrain_datasets.source import FaceSource

#: The largest photo decoded: 100 megapixels, 300 MB of memory.
MAX_PIXELS = 100_000_000

_MAX_SCANS = 100
_CHUNK = 64


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be used: its index, where it lies, and the whole story in one line."""

    index: int
    where: str
    reason: str


def decode_image(data: bytes, where: str, image_size: int, allow_grey: bool) -> np.ndarray:
    """As `decode_face`; the error begins with `where`, the file's name."""
    try:
        return decode_face(data, image_size, allow_grey)
    except DatasetError as error:
        raise DatasetError(f"{where}: {error}") from None


def decode_face(data: bytes, image_size: int, allow_grey: bool) -> np.ndarray:
    """Decodes one image, which must already have the size the model takes.

    Args:
        data: an encoded image: JPEG, PNG, WebP, BMP, PGM or PPM.
        image_size: height and width expected, in pixels.
        allow_grey: a single-channel image is repeated in all three channels; else refused.

    Returns:
        uint8 [image_size, image_size, 3], RGB.

    Raises:
        DatasetError: unreadable, of another size, or grey; the name of the file is not in it.
    """
    if not is_usual_jpeg(data, image_size.to_bytes(2, "big") * 2):
        _check_header(data, image_size, allow_grey)
    image = _decode(data)
    # The size must be the one looked at.
    if image is None or image.shape != (image_size, image_size, 3):
        raise _unreadable(data)
    return image


def _check_header(data: bytes, image_size: int, allow_grey: bool) -> None:
    header = read_image_header(data)
    if header is None:
        raise _unreadable(data)
    if header.width != image_size or header.height != image_size:
        raise DatasetError(
            f"image is {header.width}x{header.height}, expected {image_size}x{image_size}; "
            f"align and crop the faces to {image_size}x{image_size} first (facetrain data prepare)"
        )
    if header.num_channels == 1 and not allow_grey:
        raise DatasetError(
            "image is grey (1 channel), expected colour; "
            "replace or remove it, or allow grey images (allow_grey)"
        )


def decode_photo(data: bytes, where: str, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decodes a photo of any size, turned upright as its EXIF orientation says; grey becomes RGB.

    Returns:
        uint8 [height, width, 3], RGB.

    Raises:
        DatasetError: unreadable, or of more than `max_pixels` pixels or 100 scans, seen before
            decoding.
    """
    header = read_image_header(data)
    if header is not None and header.width * header.height > max_pixels:
        raise DatasetError(
            f"{where}: image is {header.width}x{header.height}, more than {max_pixels:,} pixels; "
            f"make it smaller or remove it"
        )
    # Each scan of a JPEG goes over all of its pixels; usual are one, or ten where progressive.
    num_scans = data.count(b"\xff\xda") if header is not None and header.kind == "jpeg" else 0
    if num_scans > _MAX_SCANS:
        raise DatasetError(
            f"{where}: a JPEG of {num_scans} scans, more than {_MAX_SCANS}; remove it"
        )
    image = None if header is None else _decode(data)
    # A photo on its side has its sides exchanged.
    if header is None or image is None or {*image.shape[:2]} != {header.width, header.height}:
        raise DatasetError(f"{where}: {_unreadable(data)}")
    return image


def _decode(data: bytes) -> np.ndarray | None:
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:
        return None


def _unreadable(data: bytes) -> DatasetError:
    found = f"{len(data)} bytes" if data else "an empty file"
    return DatasetError(
        f"not a readable image ({found}; read are JPEG, PNG, WebP, BMP, PGM and PPM); "
        f"replace or remove it"
    )


def check_images(
    source: FaceSource,
    *,
    image_size: int,
    allow_grey: bool,
    limit: int = 50_000,
    seed: int = 0,
) -> list[BadImage]:
    """Decodes every image, or a seeded sample of `limit` when there are more.

    Threads do the work: OpenCV decodes without holding the interpreter lock.

    Returns:
        The images that cannot be used, by ascending index.

    Raises:
        DatasetError: `limit` below 1.
    """
    indices = sample_indices(len(source), limit, seed)

    def check(chunk: np.ndarray) -> list[BadImage]:
        bad = []
        for index in chunk.tolist():
            where = source.describe(index)
            try:
                decode_image(source.read(index), where, image_size, allow_grey)
            except (DatasetError, OSError) as error:
                bad.append(BadImage(index, where, str(error)))
        return bad

    chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return [bad for found in pool.map(check, chunks) for bad in found]


def sample_indices(num_images: int, limit: int, seed: int) -> np.ndarray:
    """All of `num_images` indices, or `limit` chosen by the seed when there are more; ascending.

    Raises:
        DatasetError: `limit` below 1.
    """
    if limit < 1:
        raise DatasetError(f"limit is {limit}; allowed: 1 or more images to check")
    if num_images <= limit:
        return np.arange(num_images)
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(num_images, limit, replace=False, shuffle=False))
