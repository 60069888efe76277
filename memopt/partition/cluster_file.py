"""A cluster as a YAML file: the fields of `Cluster`, `Device` and `Link`, by their names.

    device:
      name: my-gpu
      memory_bytes: 30.5GB        # a number, or with a unit
      half_per_s: 100e12
      fp32_per_s: 14e12
      memory_bytes_per_s: 800e9
      peak_half_per_s: 125e12
      training_share: 0.23
      source: measured in May     # may be left out
    num_nodes: 1                  # may be left out
    devices_per_node: 8
    intra: {latency_us: 2, bytes_per_s: 130e9, half_bytes: 2MiB}
    inter: {latency_us: 4, bytes_per_s: 12e9, half_bytes: 1MiB}    # left out: there is one node
    overlap: 0.7

All problems of a file are reported at once.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from memopt.errors import MemoptError
from memopt.partition.cluster import Cluster, Device, Link
from memopt.units import parse_bytes

_LARGEST_FILE_BYTES = 2**20
_MOST_PROBLEMS = 20
_LARGEST_RATE, _LARGEST_US = 1e30, 1e9  # beyond them times are no finite numbers
_RATES = "a number from 1 to 1e30"


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file describes.

    Raises:
        MemoptError: it cannot be read, or is not one; names each field, its value, and what is
            allowed.
    """
    import yaml

    try:
        # A pipe would wait, and a device has no end.
        if path.exists() and not path.is_dir() and not path.is_file():
            raise MemoptError(f"{path}: no regular file; must be a description of a cluster")
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise MemoptError(f"{path}: more than 1 MiB; must be a short description of a cluster")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MemoptError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, MemoptError):
            raise
        where = " ".join(str(error).split())[:200] or type(error).__name__
        raise MemoptError(f"{path}: is no YAML ({where})") from error
    reader = _Reader()
    cluster = reader.cluster(content)
    if cluster is None:
        problems = reader.problems[:_MOST_PROBLEMS]
        if more := len(reader.problems) - len(problems):
            problems.append(f"and {more:,} more")
        raise MemoptError(f"{path}: {'; '.join(problems)}")
    return cluster


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Save a cluster so that `read_cluster` gives it back, to the bit.

    Raises:
        MemoptError: the file cannot be written.
    """
    import yaml

    content = asdict(cluster)
    if cluster.inter is None:
        del content["inter"]
    try:
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise MemoptError(f"{path}: cannot be written ({error.strerror or error})") from error


class _Reader:
    """Takes fields out of a file's content and notes what is wrong with them.

    Attributes:
        problems: one phrase for each.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def cluster(self, content: Any) -> Cluster | None:
        """None where there are problems."""
        values = self._section("", content, Cluster, optional={"num_nodes", "inter"})
        num_nodes = self._count("num_nodes", values.get("num_nodes", 1))
        devices_per_node = self._count("devices_per_node", values.get("devices_per_node"))
        overlap = self._number("overlap", values.get("overlap"), _share_or_none, "from 0 to 1")
        device = self._device(values.get("device"))
        intra = self._link("intra", values.get("intra"))
        inter = None if values.get("inter") is None else self._link("inter", values["inter"])
        if num_nodes > 1 and values.get("inter") is None:
            self._problem("inter", None, "a link, since there are several nodes")
        if self.problems or device is None or intra is None:
            return None
        return Cluster(device, num_nodes, devices_per_node, intra, inter, overlap)

    def _device(self, content: Any) -> Device | None:
        if content is None:
            return None
        values = self._section("device", content, Device, optional={"source"})
        name, source = values.get("name", "?"), values.get("source", "")
        for field, text in (("name", name), ("source", source)):
            if not isinstance(text, str):
                self._problem(f"device.{field}", text, "text")
        half_per_s, fp32_per_s, memory_per_s, peak_per_s = (
            self._number(f"device.{field}", values.get(field), _rate, _RATES)
            for field in ("half_per_s", "fp32_per_s", "memory_bytes_per_s", "peak_half_per_s")
        )
        memory = self._bytes("device.memory_bytes", values.get("memory_bytes"))
        share = values.get("training_share")
        share = self._number("device.training_share", share, _share, "above 0 and at most 1")
        return Device(
            str(name),
            int(memory),
            half_per_s,
            fp32_per_s,
            memory_per_s,
            peak_per_s,
            share,
            str(source),
        )

    def _link(self, where: str, content: Any) -> Link | None:
        if content is None:
            return None
        values = self._section(where, content, Link, optional=set())
        latency = values.get("latency_us")
        speed, half = values.get("bytes_per_s"), values.get("half_bytes")
        return Link(
            self._number(f"{where}.latency_us", latency, _latency, "a number from 0 to 1e9"),
            self._number(f"{where}.bytes_per_s", speed, _rate, _RATES),
            self._bytes(f"{where}.half_bytes", half, at_least=0.0),
        )

    # --- fields ----------------------------------------------------------------------------------

    def _section(
        self, where: str, content: Any, kind: type, optional: set[str]
    ) -> Mapping[str, Any]:
        """The fields of one section; those missing and unknown are noted."""
        known = [field.name for field in fields(kind)]
        if not isinstance(content, dict):
            what = where or ("the file" if content is not None else "the empty file")
            self._problem(what, content, f"fields {', '.join(known)}")
            return {}
        dot = f"{where}." if where else ""
        for name in known:
            if content.get(name) is None and name not in optional:
                self.problems.append(f"{dot}{name} is missing")
        for name in content:
            if name not in known:
                self.problems.append(f"{dot}{name} is unknown: fields are {', '.join(known)}"[:300])
        return {str(name): value for name, value in content.items()}

    def _problem(self, field: str, value: Any, allowed: str) -> None:
        self.problems.append(f"{field} {_shown(value)}: must be {allowed}")

    def _number(
        self, field: str, value: Any, allowed: Callable[[float], bool], words: str
    ) -> float:
        if value is None:  # noted as missing
            return math.nan
        number = _as_number(value)
        if number is None or not allowed(number):
            self._problem(field, value, words)
            return math.nan
        return number

    def _count(self, field: str, value: Any) -> int:
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
            self._problem(field, value, "a whole number from 1 to 1,000,000")
            return 1
        return value

    def _bytes(self, field: str, value: Any, at_least: float = 1.0) -> float:
        if value is None:
            return 1.0
        number = _as_number(value)
        if number is None and isinstance(value, str):
            try:
                number = float(parse_bytes(value))
            except MemoptError:
                number = None
        if number is None or not at_least <= number < 2**63:
            self._problem(field, value, f"bytes, at least {at_least:g}, as a number or as '2MiB'")
            return 1.0
        return number


def _as_number(value: Any) -> float | None:
    """YAML 1.1 reads 1e9 as text; nothing else is taken for a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    # Not repr: aliases make a few lines into more than memory holds.
    text = " ".join(reprlib.repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _rate(number: float) -> bool:
    return 1 <= number <= _LARGEST_RATE


def _latency(number: float) -> bool:
    return 0 <= number <= _LARGEST_US


def _share(number: float) -> bool:
    return 0 < number <= 1


def _share_or_none(number: float) -> bool:
    return 0 <= number <= 1
