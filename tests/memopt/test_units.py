from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memopt.errors import MemoptError
from memopt.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("256MiB", 268_435_456),
        ("1.5 GiB", 1_610_612_736),
        ("2GB", 2_000_000_000),
        (" 4 gib ", 4_294_967_296),
        ("1048576", 1_048_576),
        ("7B", 7),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_parse_bytes_known_sizes(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "4G", "-1GiB", "1e9", "1,5GiB", "4 GiB more", "٤GiB"])
def test_parse_bytes_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(MemoptError, match="write a number and one of the units B, KiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.5B"])
def test_parse_bytes_refuses_nothing(text: str) -> None:
    with pytest.raises(MemoptError, match="at least one byte"):
        parse_bytes(text)


@given(st.integers(1, 2**50))
def test_format_bytes_round_up_never_names_fewer_bytes(num_bytes: int) -> None:
    shown = parse_bytes(format_bytes(num_bytes, round_up=True))
    assert shown >= num_bytes
    # One decimal of a unit that is at most `num_bytes`.
    assert shown - num_bytes <= num_bytes / 10 + 1


def test_format_bytes_picks_the_largest_unit() -> None:
    assert format_bytes(0) == "0B"
    assert format_bytes(1023) == "1023B"
    assert format_bytes(1536 * 1024) == "1.5MiB"
    assert format_bytes(3 * 2**40) == "3.0TiB"
