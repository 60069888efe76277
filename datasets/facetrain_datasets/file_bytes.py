"""The bytes of one image file, whatever a list or a folder takes for one.

Names in data sets come from others: a named pipe would wait for ever, a device never end, and a
file can claim any size without taking room on the disk.
"""

from __future__ import annotations

import os
import stat

from facetrain_datasets.errors import DatasetError

#: More than the largest photo that is decoded takes without compression.
MAX_IMAGE_BYTES = 1 << 29


def read_image_file(path: str) -> bytes:
    """The whole file; without Python's file objects, which take longer.

    Raises:
        DatasetError: no file, or too large a one, to hold an image.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError:
        raise DatasetError(f"{path}: no name of a file; correct it") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_IMAGE_BYTES:
            raise DatasetError(f"{path}: {_what_it_is(status)}, not an image; replace or remove it")
        return os.read(descriptor, status.st_size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def _what_it_is(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a folder"
    if not stat.S_ISREG(status.st_mode):
        return "a pipe or a device"
    return f"{status.st_size:,} bytes"
