"""Sets in many files of a kind: a folder of them, one of them, or `faces-{000..012}.tar`."""

from __future__ import annotations

import re
from pathlib import Path

from facetrain_datasets.errors import DatasetError

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_SHARDS = 1_000_000


def shard_files(path: Path, suffix: str) -> list[Path]:
    """The files, in order.

    Raises:
        DatasetError: there are none, or one of them is no file.
    """
    if path.is_dir():
        named = sorted(f for f in path.glob(f"*{suffix}") if not f.name.startswith("."))
        if not named:
            raise DatasetError(f"{path}: no {suffix} file in it; give the folder that holds them")
    else:
        named = [path] if path.exists() else [path.with_name(name) for name in _expand(path)]
    absent = next((file for file in named if not file.is_file()), None)
    if absent is not None:
        raise DatasetError(f"{absent}: no such file; give a {suffix} file or a folder of them")
    return named


def _expand(path: Path) -> list[str]:
    match = _RANGE.search(path.name)
    if match is None:
        return [path.name]
    first, last = match.groups()
    count = int(last) - int(first) + 1
    if not 1 <= count <= _MAX_SHARDS:
        raise DatasetError(f"{path}: {{{first}..{last}}} names {count} files; name 1 or more")
    before, after = path.name[: match.start()], path.name[match.end() :]
    return [f"{before}{n:0{len(first)}d}{after}" for n in range(int(first), int(last) + 1)]
