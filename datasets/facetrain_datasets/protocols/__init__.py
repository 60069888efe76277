"""Lists of what to evaluate, as the field publishes them; one file per format.

pairs = open_pairs("lfw_pairs.txt", "lfw112")   # LFW's lists, tables of pairs, .bin sets
"""

from __future__ import annotations

import os
from pathlib import Path

from facetrain_datasets.protocols.csv_pairs import read_csv_pairs
from facetrain_datasets.protocols.lfw_pairs import read_lfw_pairs
from facetrain_datasets.protocols.pair_set import PairSet
from facetrain_datasets.protocols.verification_bin import read_verification_bin

__all__ = ["PairSet", "open_pairs"]

_PICKLE_SUFFIXES = frozenset({".bin", ".pkl"})


def open_pairs(
    path: str | os.PathLike[str], images_root: str | os.PathLike[str] | None = None
) -> PairSet:
    """The pairs of a file: a .bin set, an LFW pair list, or else a table of pairs.

    Args:
        images_root: folder of the images that a list names; a table's own folder by default.

    Raises:
        DatasetError: it cannot be read; the message names file and line.
    """
    file = Path(path)
    if file.suffix in _PICKLE_SUFFIXES:
        return read_verification_bin(file)
    try:
        with file.open("rb") as stream:
            first_fields = stream.readline(256).split()
    except OSError:  # said better by the reader
        first_fields = []
    if all(field.isdigit() for field in first_fields):
        return read_lfw_pairs(file).resolve(images_root)
    return read_csv_pairs(file, images_root)
