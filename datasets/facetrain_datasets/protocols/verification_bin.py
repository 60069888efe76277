"""Verification sets in one file (`lfw.bin`, `cfp_fp.bin`, `agedb_30.bin`), read without trust.

The file is a pickle of `(images, is_same)`: pair i is images 2i and 2i+1, each an encoded image as
bytes (also Python 2's `str`) or as a uint8 array. A pickle can name any function to call on
loading, so this reader knows only the few names that such a file needs, gives each a stand-in of
its own, and refuses every other by name. Nor does a small file take much memory or time: what it
makes is no more than it holds, and the dicts and sets whose keys could take for ever to hash are
refused too.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.protocols.pair_set import PairSet

#: The published sets are ten folds of equal size.
NUM_FOLDS = 10

_ENCODINGS = frozenset({"latin1", "latin-1", "ascii", "utf-8", "utf8"})
_MAX_DIMENSIONS = 32

_DAMAGED = (
    pickle.UnpicklingError,
    struct.error,
    EOFError,
    LookupError,
    ValueError,  # and UnicodeError
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    MemoryError,
    RecursionError,
    NotImplementedError,
)


def read_verification_bin(path: str | os.PathLike[str]) -> PairSet:
    """Reads the whole set; the encoded images stay in memory.

    Raises:
        DatasetError: no such file, one that names a function to run, or not such a set.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise DatasetError(f"{file}: no such file; give a verification set (.bin)") from None
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        content = _Unpickler(data, file).load()
    except DatasetError:
        raise
    except _DAMAGED as error:
        reason = f"{type(error).__name__}: {str(error)[:80]!r}"
        raise DatasetError(
            f"{file}: not a readable verification set ({reason}); fetch it again"
        ) from None
    if not isinstance(content, (tuple, list)) or len(content) != 2:
        raise DatasetError(f"{file}: not (images, is_same); give a verification set (.bin)")
    known: dict[int, bytes] = {}
    images = [_encoded(item, row, file, known) for row, item in enumerate(_items(content[0], file))]
    kinds = [_kind(item, number, file) for number, item in enumerate(_items(content[1], file))]
    if not kinds or len(images) != 2 * len(kinds):
        raise DatasetError(
            f"{file}: {len(images)} images for {len(kinds)} pairs, expected two a pair; fetch it "
            "again"
        )
    rows = np.arange(len(images), dtype=np.int64)
    return PairSet(
        path=file,
        names=[f"image {row}" for row in range(len(images))],
        left=rows[0::2],
        right=rows[1::2],
        is_same=np.array(kinds, dtype=bool),
        num_folds=NUM_FOLDS,
        encoded=images,
    )


class _Unpickler(pickle._Unpickler):
    """Knows a few names only; in Python, since C's keeps its memo in an array of any size."""

    def __init__(self, data: bytes, file: Path) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._path = file
        self._size = len(data)
        self._left = 2 * len(data)  # a bytearray is written as a call on the result of another
        # Functions of this load only: a pickle may set attributes of what it is given.
        names: dict[str, Callable[..., Any]] = {
            "numpy.ndarray": lambda: None,
            "numpy.dtype": lambda name, *_: _Dtype(_text(name)),
            "_codecs.encode": lambda text, encoding: self._made(_encode(text, encoding)),
            "builtins.bytes": lambda *values: self._made(_bytes(*values)),
            "builtins.bytearray": lambda *values: self._made(_bytes(*values)),
        }
        for core in ("numpy.core", "numpy._core"):
            names[f"{core}.multiarray._reconstruct"] = lambda *_: _Array()
            names[f"{core}.multiarray.scalar"] = lambda dtype, data: _Array(dtype, (), data)
            names[f"{core}.numeric._frombuffer"] = lambda data, dtype, shape, _: _Array(
                dtype, shape, data
            )
        self._names = names

    def _made(self, made: bytes) -> bytes:
        """What a function gave: of one text it could be asked for a million times."""
        self._left -= len(made)
        if self._left < 0:
            raise ValueError(f"more than its {self._size} bytes can hold")
        return made

    def load_bytearray8(self) -> None:
        """Python's own makes an array of any size that the file names before it reads."""
        (size,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        if size > self._size:
            raise EOFError(f"a bytearray of {size} bytes in {self._size}")
        self.append(bytearray(self.read(size)))  # type: ignore[attr-defined]

    def load_refused(self) -> None:
        """Dicts and sets: none is needed, and hashing nested tuples can take for ever."""
        raise pickle.UnpicklingError("a dict or a set in it")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        **dict.fromkeys(
            (
                code[0]
                for code in (
                    pickle.DICT,
                    pickle.EMPTY_DICT,
                    pickle.SETITEM,
                    pickle.SETITEMS,
                    pickle.EMPTY_SET,
                    pickle.ADDITEMS,
                    pickle.FROZENSET,
                )
            ),
            load_refused,
        ),
    }

    def find_class(self, module: Any, name: Any) -> Any:
        qualified = f"{_text(module).replace('__builtin__', 'builtins')}.{_text(name)}"
        found = self._names.get(qualified)
        if found is None:
            raise DatasetError(
                f"{self._path}: would run {qualified!r} on loading, so it is refused; fetch the "
                "set from a source you trust"
            )
        return found


@dataclass
class _Dtype:
    name: str

    def __setstate__(self, state: object) -> None:
        """Byte order and the like; one byte has none."""


@dataclass
class _Array:
    """What an array's pickle says of it."""

    dtype: Any = None
    shape: Any = ()
    data: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, _, self.data = state

    def content(self, kind: str, file: Path) -> bytes:
        """The bytes of an array of this dtype ("u1", "b1"), not copied where they are bytes."""
        name = self.dtype.name if isinstance(self.dtype, _Dtype) else "?"
        data = self.data.encode("latin1") if isinstance(self.data, str) else self.data
        sizes = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        is_shape = len(sizes) <= _MAX_DIMENSIONS and all(
            isinstance(size, int) and 0 <= size < 1 << 63 for size in sizes
        )
        if (
            not is_shape
            or name.lstrip("|<>=") not in {kind, np.dtype(kind).name}
            or not isinstance(data, (bytes, bytearray))
            or math.prod(sizes) != len(data)
        ):
            shape = list(sizes) if is_shape else "of no shape"
            raise DatasetError(
                f"{file}: holds an array of {name[:40]!r} {shape}, expected "
                f"{np.dtype(kind).name}; fetch it again"
            )
        return bytes(data)


def _bytes(values: Any = b"", encoding: Any = "latin1") -> bytes:
    """As `bytes` has it, but of a number it makes nothing: that could be of any size."""
    if isinstance(values, str):
        return _encode(values, encoding)
    if not isinstance(values, (bytes, bytearray, list, tuple)):
        raise TypeError(f"bytes of {type(values).__name__}")
    return bytes(values)


def _encode(text: Any, encoding: Any) -> bytes:
    """As `codecs.encode`, by the encodings that pickles are written with."""
    if not isinstance(text, str) or _text(encoding) not in _ENCODINGS:
        raise TypeError(f"{type(text).__name__} in an encoding that no such set has")
    return text.encode(_text(encoding))


def _text(value: Any) -> str:
    if not isinstance(value, (bytes, str)):
        raise TypeError(f"{type(value).__name__} for a name")
    return value.decode("ascii") if isinstance(value, bytes) else value


def _items(values: Any, file: Path) -> list[Any]:
    if isinstance(values, _Array):
        return np.frombuffer(values.content("b1", file), bool).tolist()
    if not isinstance(values, (list, tuple)):
        raise DatasetError(f"{file}: holds {type(values).__name__} where a list is expected")
    return list(values)


def _encoded(item: Any, row: int, file: Path, known: dict[int, bytes]) -> bytes:
    """The bytes of an image; `known` has those made of others, since many may be the same."""
    if isinstance(item, _Array):
        at = id(item.data)
        if at not in known:
            known[at] = item.content("u1", file)
        return known[at]
    if isinstance(item, bytes):
        return item
    if isinstance(item, bytearray):
        if id(item) not in known:
            known[id(item)] = bytes(item)
        return known[id(item)]
    raise DatasetError(f"{file}: image {row} is {type(item).__name__}, expected bytes or uint8")


def _kind(item: Any, number: int, file: Path) -> bool:
    value = _items(item, file) if isinstance(item, _Array) else [item]
    if len(value) != 1 or not isinstance(value[0], int) or value[0] not in (0, 1):
        raise DatasetError(
            f"{file}: pair {number} is {_shown(item)}, expected True or False; fetch it again"
        )
    return bool(value[0])


def _shown(item: Any) -> str:
    """A short value as it is; of all else, which may be nested without end, the kind."""
    is_short = isinstance(item, str) or (isinstance(item, (int, float)) and abs(item) < 1e9)
    return repr(item)[:40] if is_short else f"of kind {type(item).__name__}"
