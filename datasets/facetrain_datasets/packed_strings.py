"""Millions of strings in two arrays: no Python object each, so forked workers share the pages.

names = PackedStrings.of(["Ada", "Alan"])
names[1]                                    # "Alan"
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

_ENCODING = ("utf-8", "surrogateescape")  # file names need not be UTF-8


class PackedStrings(Sequence[str]):
    """A sequence of strings; string i is `data[ends[i - 1]:ends[i]]`, and equals any such sequence.

    Attributes:
        data: uint8, the strings in UTF-8, one after another.
        ends: int64 [len(self)], where each ends in `data`.
    """

    __slots__ = ("data", "ends")

    def __init__(self, data: np.ndarray, ends: np.ndarray) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> PackedStrings:
        """Packs the strings as they come."""
        packer = StringPacker()
        for string in strings:
            packer.append(string)
        return packer.pack()

    @classmethod
    def numbered(cls, count: int) -> PackedStrings:
        """`0 .. count - 1` with leading zeros, so that sorting them as strings changes nothing."""
        width = len(str(max(count - 1, 0)))
        numbers = np.arange(count, dtype=np.int64)
        digits = np.empty((count, width), np.uint8)
        for column in range(width):
            digits[:, column] = numbers // 10 ** (width - 1 - column) % 10 + ord("0")
        return cls(digits.reshape(-1), (numbers + 1) * width)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(*index.indices(len(self))))
        row = range(len(self))[index]
        start = self.ends.item(row - 1) if row else 0
        return self.data[start : self.ends.item(row)].tobytes().decode(*_ENCODING)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedStrings):
            return np.array_equal(self.ends, other.ends) and np.array_equal(self.data, other.data)
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PackedStrings({len(self):,} strings)"


class StringPacker:
    """Packs strings that come one at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("q")

    def append(self, string: str) -> None:
        self._data += string.encode(*_ENCODING)
        self._ends.append(len(self._data))

    def pack(self) -> PackedStrings:
        """The strings so far; nothing may be appended after that."""
        return PackedStrings(
            np.frombuffer(self._data, np.uint8), np.frombuffer(self._ends, np.int64)
        )
