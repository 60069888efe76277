"""Damaged variants of files: readers must say in one line what is wrong.

FACETRAIN_FUZZ_INPUTS is how many of each; 10,000 where it is not set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st

NUM_INPUTS = int(os.environ.get("FACETRAIN_FUZZ_INPUTS", "10000"))
PER_EXAMPLE = 10  # inputs of one seed: drawing each by itself takes longer than reading it
fuzzed = settings(
    max_examples=max(1, NUM_INPUTS // PER_EXAMPLE),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, (1 << 32) - 1)

_LIMITS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x0a\x23\xd7\xce", b"../", b"/")


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Variants of `data` with one to four pieces overwritten, added, left out or repeated."""
    random = Random(seed)
    for _ in range(PER_EXAMPLE):
        variant = data
        for _ in range(random.randint(1, 4)):
            variant = _edited(variant, random)
        note(f"input: {variant!r}")
        yield variant


def _edited(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    content = random.choice((*_LIMITS, random.randbytes(random.randint(1, 6))))
    size = len(content)
    match random.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + content + data[at:]
        case 2:
            return data[:at] + data[at + 8 * size :]
        case 3:
            return data[:at] + data[max(0, at - 16 * size) :]
        case _:
            return data[:at] + content + data[at + size :]
