"""Bytes as people write them: `parse_bytes("256MiB")` and `format_bytes(268435456)`.

Binary units (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones (KB, MB, GB, TB) of 1000, as in
IEC 80000-13. A bare "G" is refused because it means either.
"""

from __future__ import annotations

import math
import re

from memopt.errors import MemoptError

_UNIT_BYTES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_BYTES_OF_LOWERED_UNIT = {unit.lower(): num_bytes for unit, num_bytes in _UNIT_BYTES.items()}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Number of bytes that `text` names: "256MiB", "1.5 GiB", "2GB", or a plain whole number.

    Upper and lower case are the same; a fraction of a byte is dropped.

    Raises:
        MemoptError: not a number with one of the known units, or less than one byte.
    """
    match = _QUANTITY.fullmatch(text.strip())
    unit_bytes = _BYTES_OF_LOWERED_UNIT.get(match["unit"].lower() or "b") if match else None
    if match is None or unit_bytes is None:
        raise MemoptError(
            f"memory size {text!r} cannot be read: write a number and one of the units "
            f"{', '.join(_UNIT_BYTES)}, as in '256MiB'"
        )
    # Whole numbers stay exact beyond 2**53.
    number = match["number"]
    num_bytes = int(float(number) * unit_bytes) if "." in number else int(number) * unit_bytes
    if num_bytes < 1:
        raise MemoptError(f"memory size {text!r} must be at least one byte")
    return num_bytes


def format_bytes(num_bytes: int, *, round_up: bool = False) -> str:
    """Short text such as "1.5MiB" that `parse_bytes` reads back to within its one decimal.

    Args:
        num_bytes: at least 0.
        round_up: never name fewer bytes than `num_bytes`, for sizes a user is told to ask for.
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes >= _UNIT_BYTES[unit]:
            tenths = num_bytes * 10 / _UNIT_BYTES[unit]
            return f"{(math.ceil(tenths) if round_up else round(tenths)) / 10:.1f}{unit}"
    return f"{num_bytes}B"
