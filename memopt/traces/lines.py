"""Files of JSON objects, one a line, plain or gzip; what is wrong is said with file and line."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memopt.errors import MemoptError

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Line:
    """One object of the file, and readers of its fields that refuse what does not fit.

    Attributes:
        number: from 1.
    """

    path: Path
    number: int
    fields: dict[str, Any]

    def wrong(self, problem: str) -> MemoptError:
        """The error to raise."""
        return MemoptError(f"{self.path}:{self.number}: {problem}")

    def field(self, name: str) -> Any:
        """Raises MemoptError where it is absent."""
        if name not in self.fields:
            raise self.wrong(f"no field {name!r}")
        return self.fields[name]

    def text(self, name: str) -> str:
        if type(found := self.field(name)) is not str:
            raise self.wrong(f"{name!r} must be a text, not {found!r}")
        return found

    def whole(self, name: str, at_least: int = 0) -> int:
        return self._whole(name, self.field(name), at_least)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Several, each at least 0."""
        return tuple(self._whole(name, item, 0) for item in self._items(name))

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._items(name)
        if any(type(item) is not str for item in found):
            raise self.wrong(f"{name!r} must be a list of texts, not {found!r}")
        return tuple(found)

    def number_at_least_0(self, name: str) -> float:
        found = self.field(name)
        if type(found) not in (int, float) or not math.isfinite(found) or found < 0:
            raise self.wrong(f"{name!r} must be a number of at least 0, not {found!r}")
        return float(found)

    def flag(self, name: str) -> bool:
        if type(found := self.field(name)) is not bool:
            raise self.wrong(f"{name!r} must be true or false, not {found!r}")
        return found

    def _items(self, name: str) -> list[Any]:
        if type(found := self.field(name)) is not list:
            raise self.wrong(f"{name!r} must be a list, not {found!r}")
        return found

    def _whole(self, name: str, found: Any, at_least: int) -> int:
        if type(found) is not int or found < at_least:
            raise self.wrong(
                f"{name!r} must be a whole number of at least {at_least}, not {found!r}"
            )
        return found


def read_lines(path: Path) -> Iterator[Line]:
    """Each line of the file that is not empty.

    Raises:
        MemoptError: the file cannot be read, is cut, or has a line that is not a JSON object.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            magic = raw.read(len(_GZIP_MAGIC))
        opener = gzip.open if magic == _GZIP_MAGIC else open
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    yield Line(path, number, _parsed(path, number, text))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MemoptError(f"{path}:{number + 1}: the gzip data is cut or damaged") from error
    except UnicodeDecodeError as error:
        raise MemoptError(f"{path}:{number + 1}: not UTF-8 text, so not a trace") from error
    except OSError as error:
        raise MemoptError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parsed(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        cut = "" if text.endswith("\n") else " (the file ends inside it)"
        raise MemoptError(f"{path}:{number}: the line is not JSON{cut}") from error
    if not isinstance(found, dict):
        raise MemoptError(f"{path}:{number}: the line is not a JSON object")
    return found
