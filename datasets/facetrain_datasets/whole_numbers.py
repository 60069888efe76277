"""Whole numbers in text files."""

from __future__ import annotations


def is_whole_number(text: str) -> bool:
    """Whether this is a number from 0 in plain digits, and not too long to be one of anything.

    `int` takes other digits, signs and underscores too, and refuses thousands of digits.
    """
    return text.isascii() and text.isdigit() and len(text) < 20
