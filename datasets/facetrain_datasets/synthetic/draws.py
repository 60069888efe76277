"""Frozen records of random numbers: a class whose fields say the range they are drawn from."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TypeVar

import numpy as np

Record = TypeVar("Record")


def span(low: float, high: float) -> float:
    """A dataclass field drawn uniformly from `low .. high`."""
    span_field: float = field(metadata={"span": (low, high)})
    return span_field


def draw(record: type[Record], rng: np.random.Generator) -> Record:
    """Draws every field of a dataclass made of `span` fields, independently, in one call."""
    spans = np.array([f.metadata["span"] for f in fields(record)])  # type: ignore[arg-type]
    return record(*rng.uniform(spans[:, 0], spans[:, 1]).tolist())
